/** Settings of a broker, as the console edits them. Values are texts all the way: no number goes through a float. */
import type { Schema } from "@/api/types";

export type Setting = Schema<"BrokerSettings">["items"][number];

/** New values by name; settings that stay are not there. */
export type Edits = Readonly<Record<string, string>>;

export interface SettingChange {
  name: string;
  before: string;
  after: string;
}

/** Returns the settings whose new value differs from the one that the broker has, in the broker's order. */
export function changesOf(settings: readonly Setting[], edits: Edits): SettingChange[] {
  return settings.flatMap((setting) => {
    const after = edits[setting.name];
    return after === undefined || after === setting.value ? [] : [{ name: setting.name, before: setting.value, after }];
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
