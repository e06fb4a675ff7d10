/** Filters of lists, as the contract and the command line take them. */

/** Returns the values of a query that are given. */
export function given(values: Readonly<Record<string, string>>): Record<string, string> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== ""));
}

/** Returns a query as options of a command. */
export function optionsOf(query: Readonly<Record<string, string>>): string[] {
  return Object.entries(query).flatMap(([name, value]) => [`--${name}`, value]);
}
