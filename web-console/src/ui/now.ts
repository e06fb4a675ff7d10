import { useSyncExternalStore } from "react";

const TICK_MS = 1_000;
let nowMs = Date.now();
let timer: ReturnType<typeof setInterval> | undefined;
const listeners = new Set<() => void>();

function subscribe(listener: () => void): () => void {
  listeners.add(listener);
  // Nobody renewed the time while nobody listened.
  if (timer === undefined) nowMs = Date.now();
  timer ??= setInterval(() => {
    nowMs = Date.now();
    listeners.forEach((each) => {
      each();
    });
  }, TICK_MS);
  return () => {
    listeners.delete(listener);
    if (listeners.size === 0) {
      clearInterval(timer);
      timer = undefined;
    }
  };
}

/** A text that depends on the time, such as an age. It is drawn again only when it changes. */
export function useTextOfNow(textAt: (nowMs: number) => string | null): string | null {
  return useSyncExternalStore(subscribe, () => textAt(nowMs));
}

/** The time in ms, renewed every second by one timer for the whole page. */
export function useNow(): number {
  return useSyncExternalStore(subscribe, () => nowMs);
}
