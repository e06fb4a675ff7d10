/** Settings of a broker, as the console edits them. Values are texts all the way: no number goes through a float. */
import type { Schema } from "@/api/types";

export type Setting = Schema<"BrokerSettings">["items"][number];

/** What was typed, and the value that it was typed over; settings that stay are not there. */
export type Edits = Readonly<Record<string, { before: string; after: string }>>;

export interface SettingChange {
  name: string;
  before: string;
  after: string;
}

/** Returns the edits with a value that was typed. The value before stays the one that the reader saw first. */
export function edited(edits: Edits, { name, value }: Setting, after: string): Edits {
  const before = edits[name]?.before ?? value;
  const others = Object.fromEntries(Object.entries(edits).filter(([each]) => each !== name));
  return after === before ? others : { ...others, [name]: { before, after } };
}

/** Returns the edits on top of the values that somebody else has set meanwhile. */
export function rebased(edits: Edits, differences: readonly { name: string; actual: string }[]): Edits {
  const actual = new Map(differences.map((each) => [each.name, each.actual]));
  return Object.fromEntries(
    Object.entries(edits).map(([name, edit]) => [name, { ...edit, before: actual.get(name) ?? edit.before }]),
  );
}

/** Returns the settings whose new value differs from the one that the broker has, in the broker's order. */
export function changesOf(settings: readonly Setting[], edits: Edits): SettingChange[] {
  return settings.flatMap((setting) => {
    const edit = edits[setting.name];
    return edit === undefined || edit.after === setting.value ? [] : [{ name: setting.name, ...edit }];
  });
}

/** Returns the body of a change: new values, and the values that the broker must still have. */
export function toRequest(changes: readonly SettingChange[]): Schema<"BrokerSettingsRequest"> {
  return {
    settings: Object.fromEntries(changes.map(({ name, after }) => [name, after])),
    expected: Object.fromEntries(changes.map(({ name, before }) => [name, before])),
  };
}

/** Returns the settings whose name or value contains a search, and that are changeable or changed if that is asked for. */
export function findSettings(
  settings: readonly Setting[],
  wanted: { search: string; onlyLive: boolean; onlyChanged: boolean },
): Setting[] {
  const word = wanted.search.trim().toLowerCase();
  return settings.filter(
    (setting) =>
      (!wanted.onlyLive || setting.live === true) &&
      (!wanted.onlyChanged || setting.changed === true) &&
      `${setting.name} ${setting.value}`.toLowerCase().includes(word),
  );
}
