/** Changes of settings that a form edits: what differs, and what becomes of it if another person was faster. */

type Settings<N extends string> = Record<N, string | boolean>;

export interface Difference<N extends string = string> {
  name: N;
  before: string;
  after: string;
}

export interface Conflict<N extends string = string> {
  name: N;
  read: string;
  theirs: string;
  mine: string;
}

/** Returns the settings that differ, as texts, in the order of `names`. */
export function differences<N extends string>(
  names: readonly N[],
  before: Settings<N>,
  after: Settings<N>,
): Difference<N>[] {
  return names
    .filter((name) => before[name] !== after[name])
    .map((name) => ({ name, before: String(before[name]), after: String(after[name]) }));
}

/** Returns what another person changed since the form was read, beside the form's own values. */
export function conflicts<N extends string>(
  names: readonly N[],
  read: Settings<N>,
  theirs: Settings<N>,
  mine: Settings<N>,
): Conflict<N>[] {
  return differences(names, read, theirs).map(({ name, before, after }) => ({
    name,
    read: before,
    theirs: after,
    mine: String(mine[name]),
  }));
}

/** Returns the form after a conflict: own changes stay, all other settings become the others'. */
export function rebase<N extends string, S extends Settings<N>>(names: readonly N[], read: S, theirs: S, mine: S): S {
  const own = differences(names, read, mine).map(({ name }) => [name, mine[name]]);
  return { ...theirs, ...(Object.fromEntries(own) as Partial<S>) };
}
