/**
 * Whether the gateway answers. Requests tell when it answered, and when one of them got no answer; `watchGateway` asks it
 * when nothing else does. The content of an answer does not matter here: a refusal is an answer, too.
 */

/** Whether the gateway answers, as far as is known. */
export interface Contact {
  isLost: boolean;
  /** The time of the last answer, in ms of `performance.now()`. */
  answeredAtMs: number;
  /** A request got no answer, and there was none since to another one. */
  isDoubtful: boolean;
}

let contact: Contact = { isLost: false, answeredAtMs: performance.now(), isDoubtful: false };
const listeners = new Set<() => void>();

/** Returns what is known. The object changes only together with `isLost`, or with an answer. */
export function contactNow(): Contact {
  return contact;
}

/** Whether the gateway is known to give no answers. */
export function isGatewayLost(): boolean {
  return contact.isLost;
}

/** Calls `listener` whenever the gateway is lost or back. Returns a function that ends this. */
export function onContactChange(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Notes an answer of the gateway. */
export function noteAnswer(): void {
  set({ isLost: false, answeredAtMs: performance.now(), isDoubtful: false });
}

/** Notes a request without an answer, which began at a time of `performance.now()`. */
export function noteSilence(beganAtMs: number): void {
  if (contact.answeredAtMs <= beganAtMs) set({ ...contact, isDoubtful: true });
}

/** Notes that the gateway gives no answers. */
export function noteLoss(): void {
  set({ ...contact, isLost: true });
}

function set(next: Contact): void {
  const isChanged = next.isLost !== contact.isLost;
  contact = next;
  if (isChanged) {
    listeners.forEach((listener) => {
      listener();
    });
  }
}
