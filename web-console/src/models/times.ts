/** Returns a time of a form (2026-01-31T08:30, in the reader's zone) as the contract writes it; empty if it is none. */
export function toInstant(local: string): string {
  const date = new Date(local);
  return local === "" || Number.isNaN(date.getTime()) ? "" : date.toISOString();
}
