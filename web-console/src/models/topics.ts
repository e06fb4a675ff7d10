import type { Topic, TopicChange } from "@/api/topics";
import { searchNames } from "./search";

/** The settings of a topic as a form edits them: every value is a text or a boolean. */
export interface TopicSettings {
  read_queues: string;
  write_queues: string;
  perm: Topic["perm"];
  order: boolean;
  /** A duration such as 10m; empty for no window. */
  duplicate_window: string;
  /** Names of brokers, separated by commas; empty for all brokers. */
  brokers: string;
}

export const SETTINGS = ["read_queues", "write_queues", "perm", "order", "duplicate_window", "brokers"] as const;
export type SettingName = (typeof SETTINGS)[number];

export const NEW_TOPIC: TopicSettings = {
  read_queues: "4",
  write_queues: "4",
  perm: "rw",
  order: false,
  duplicate_window: "",
  brokers: "",
};

const MS: [string, number][] = [
  ["h", 3_600_000],
  ["m", 60_000],
  ["s", 1_000],
];
const BROKERS_SHOWN = 3;

export function toSettings(topic: Topic): TopicSettings {
  return {
    read_queues: String(topic.read_queues),
    write_queues: String(topic.write_queues),
    perm: topic.perm,
    order: topic.order,
    duplicate_window: windowText(topic.duplicate_window_ms),
    brokers: topic.brokers?.join(", ") ?? "",
  };
}

/** Returns a window in the largest unit that keeps it whole: 10m. No window and an unknown one are empty. */
export function windowText(ms: number | null): string {
  if (ms === null || ms === 0) return "";
  const unit = MS.find(([, size]) => ms % size === 0);
  return unit === undefined ? `${ms}ms` : `${ms / unit[1]}${unit[0]}`;
}

/** Returns the body of a change that sets the named settings only. */
export function toChange(settings: TopicSettings, names: readonly SettingName[]): TopicChange {
  const brokers = settings.brokers.split(",").flatMap((name) => (name.trim() === "" ? [] : [name.trim()]));
  const all = {
    read_queues: Number(settings.read_queues),
    write_queues: Number(settings.write_queues),
    perm: settings.perm,
    order: settings.order,
    duplicate_window: settings.duplicate_window.trim() === "" ? null : settings.duplicate_window.trim(),
    brokers: brokers.length === 0 ? null : brokers,
  };
  return Object.fromEntries(names.map((name) => [name, all[name]])) as TopicChange;
}

/** Returns the options of `gantry topic create` that set the named settings. */
export function optionsOf(settings: TopicSettings, names: readonly SettingName[]): string[] {
  const change = toChange(settings, names);
  const words: Record<SettingName, string[]> = {
    read_queues: ["--read-queues", settings.read_queues],
    write_queues: ["--write-queues", settings.write_queues],
    perm: ["--perm", settings.perm],
    order: [settings.order ? "--order" : "--no-order"],
    duplicate_window: ["--duplicate-window", settings.duplicate_window.trim() || "off"],
    brokers: change.brokers?.flatMap((broker) => ["--broker", broker]) ?? ["--all-brokers"],
  };
  return names.flatMap((name) => words[name]);
}

/** Returns the topics whose name contains all words of a search, without regard to case. */
export function searchTopics(topics: readonly Topic[], search: string): readonly Topic[] {
  return searchNames(topics, search, (topic) => topic.topic);
}

/** Returns the brokers of a topic in a few words; null stands for all of them. */
export function brokersText(topic: Topic): string | null {
  if (topic.brokers === null) return null;
  const rest = topic.brokers.length - BROKERS_SHOWN;
  return topic.brokers.slice(0, BROKERS_SHOWN).join(", ") + (rest > 0 ? ` +${rest}` : "");
}
