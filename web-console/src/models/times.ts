/** Returns a time of a form (2026-01-31T08:30, in the reader's zone) as the contract writes it; empty if it is none. */
export function toInstant(local: string): string {
  const date = new Date(local);
  return local === "" || Number.isNaN(date.getTime()) ? "" : date.toISOString();
}

/**
 * Returns a time of a filter as the contract writes it; empty for any time. A text that is no time stays as it is: the gateway
 * refuses it by name. Without it, a filter would mean more than its reader wants.
 */
export function toFilterTime(local: string): string {
  return toInstant(local) || local;
}

/** Returns a time as an input field writes it, in the reader's time zone; empty if it is none. */
export function localTime(iso: string): string {
  const time = new Date(iso);
  if (iso === "" || Number.isNaN(time.getTime())) return "";
  return new Date(time.getTime() - time.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
