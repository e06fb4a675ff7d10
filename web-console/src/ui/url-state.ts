import { useNavigate, useRouter, useSearch } from "@tanstack/react-router";
import { useCallback } from "react";

declare module "@tanstack/react-router" {
  interface HistoryState {
    /** This entry of the history was made to open a panel; the one before shows the page without it. */
    isPanel?: boolean;
  }
}

/** How a change of the state enters the history: a step back undoes it, opens a panel, or closes the panel. */
export interface HistoryOptions {
  push?: boolean;
  panel?: "open" | "close";
}

/**
 * State of a page that belongs to its address, such as a filter or a tab, so that links and reloads keep it. Values are
 * texts. A value that equals its default is not in the address.
 */
export function useUrlState<T extends Record<string, string>>(
  defaults: T,
): [T, (change: Partial<T>, options?: HistoryOptions) => void] {
  const search: Record<string, string> = useSearch({ strict: false });
  const navigate = useNavigate();
  const router = useRouter();
  const state = Object.fromEntries(Object.entries(defaults).map(([name, value]) => [name, search[name] ?? value])) as T;
  const change = useCallback(
    (next: Partial<T>, { push = false, panel }: HistoryOptions = {}) => {
      const isOverPanel = router.state.location.state.isPanel === true;
      if (panel === "close" && isOverPanel) {
        // The entry that opened the panel leaves the history, as with the button of the browser. The panel has asked before.
        router.history.back({ ignoreBlocker: true });
        return;
      }
      void navigate({
        to: ".",
        search: ((old: Record<string, string>) => withoutDefaults({ ...old, ...next }, defaults)) as never,
        replace: !push && (panel !== "open" || isOverPanel),
        ...(panel === "open" || (isOverPanel && !push) ? { state: { isPanel: true } } : {}),
      });
    },
    // eslint-disable-next-line react-hooks/exhaustive-deps -- defaults are a constant of the page.
    [navigate, router],
  );
  return [state, change];
}

/** Returns values without those that equal their defaults. */
export function withoutDefaults(
  values: Record<string, string>,
  defaults: Record<string, string>,
): Record<string, string> {
  return Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== "" && value !== defaults[name]));
}

/** Reads the query of an address as texts. TanStack Router would read 123 as a number and lose digits of offsets. */
export function parseSearch(text: string): Record<string, string> {
  return Object.fromEntries(new URLSearchParams(text));
}

/** Writes texts as the query of an address. */
export function stringifySearch(values: Record<string, unknown>): string {
  const given = Object.entries(values).flatMap(([name, value]): [string, string][] =>
    value === undefined || value === null || value === "" ? [] : [[name, String(value as string)]],
  );
  return given.length === 0 ? "" : `?${new URLSearchParams(given).toString()}`;
}
