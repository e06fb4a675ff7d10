/** Users, API keys and sessions, as the console shows and edits them. */
import type { ApiKey, ApiKeyChange, NewApiKey } from "@/api/api-keys";
import type { User } from "@/api/users";
import type { AuditEntry } from "./audit";
import { numberOr } from "./numbers";
import type { Role } from "./roles";
import { localTime, toInstant } from "./times";

/** What roles may do, in the order in which they gain it: the least role for each ability. */
export const ABILITIES = [
  { name: "read", role: "viewer" },
  { name: "messages", role: "viewer" },
  { name: "send", role: "operator" },
  { name: "topics", role: "operator" },
  { name: "offsets", role: "operator" },
  { name: "transactions", role: "operator" },
  { name: "reports", role: "operator" },
  { name: "brokers", role: "operator" },
  { name: "access", role: "admin" },
  { name: "webhooks", role: "admin" },
  { name: "audit", role: "admin" },
] as const satisfies readonly { name: string; role: Role }[];

export const ROLES = ["viewer", "operator", "admin"] as const satisfies readonly Role[];

export interface LastLogIn {
  /** The time; null if there is none in the trail, or none that was read. */
  at: string | null;
  /** Whether all entries of the trail were read, so that an earlier log-in is not just outside of them. */
  isWhole: boolean;
}

/** Returns the time of each name's newest entry; entries are newest first. */
export function newestByName(entries: readonly AuditEntry[]): ReadonlyMap<string, string> {
  const newest = new Map<string, string>();
  for (const { name, at } of entries) if (!newest.has(name)) newest.set(name, at);
  return newest;
}

/**
 * Returns the last log-in of a user by the times of `newestByName`. A time from before the creation is of an earlier
 * user with the same name.
 */
export function lastLogInOf(user: User, newest: ReadonlyMap<string, string>, isWhole: boolean): LastLogIn {
  const at = newest.get(user.user);
  return { at: at !== undefined && at >= user.created_at ? at : null, isWhole };
}

export type Wait = User["log_in_waits"][number];

/** Returns the waits of a user after failed log-ins that have not ended yet. */
export function waitsOf(user: User, nowMs: number): Wait[] {
  return user.log_in_waits.filter((wait) => Date.parse(wait.until) > nowMs);
}

const SOON_MS = 7 * 24 * 60 * 60 * 1_000;

export type KeyState = "valid" | "ending" | "expired" | "revoked";

/** Returns whether a key is accepted at a time in ms; one that expires within a week is `ending`. */
export function stateOfKey(key: ApiKey, nowMs: number): KeyState {
  if (key.revoked_at !== null) return "revoked";
  if (key.expires_at === null) return "valid";
  const leftMs = new Date(key.expires_at).getTime() - nowMs;
  return leftMs <= 0 ? "expired" : leftMs < SOON_MS ? "ending" : "valid";
}

export interface KeyRights {
  publish: string[];
  topics: string[];
  groups: string[];
  admin: boolean;
  metrics: boolean;
}

/** Returns the rights of a key without their nesting; what an answer leaves out is not granted. */
export function rightsOf(key: ApiKey): KeyRights {
  const rights = key.rights as {
    publish?: string[];
    consume?: { topics?: string[]; groups?: string[] };
    admin?: boolean;
    metrics?: boolean;
  };
  return {
    publish: rights.publish ?? [],
    topics: rights.consume?.topics ?? [],
    groups: rights.consume?.groups ?? [],
    admin: rights.admin ?? false,
    metrics: rights.metrics ?? false,
  };
}

export const LIMITS = ["messages_per_s", "bytes_per_s", "connections", "in_flight"] as const;
export type LimitName = (typeof LIMITS)[number];

/** What a form of a key edits apart from its rights; times are of the reader's zone, and empty is none. */
export interface KeySettings extends Record<LimitName, string> {
  name: string;
  expires_at: string;
}

/** A new key as a form edits it: patterns are separated by commas. */
export interface KeyForm extends KeySettings {
  publish: string;
  topics: string;
  groups: string;
  admin: boolean;
  metrics: boolean;
}

export const NEW_KEY: KeyForm = {
  name: "",
  publish: "",
  topics: "",
  groups: "",
  admin: false,
  metrics: false,
  expires_at: "",
  messages_per_s: "",
  bytes_per_s: "",
  connections: "",
  in_flight: "",
};

/** Returns the words of a text that commas or white space separate. */
export function patternsOf(text: string): string[] {
  return text.split(/[\s,]+/).filter(Boolean);
}

/** Returns whether a form grants anything; a key without rights is of no use. */
export function grantsSomething(form: KeyForm): boolean {
  return (
    form.admin || form.metrics || [form.publish, form.topics, form.groups].some((each) => patternsOf(each).length > 0)
  );
}

/** Returns the body of a request for a new key. */
export function toNewKey(form: KeyForm): NewApiKey {
  const consume = { topics: patternsOf(form.topics), groups: patternsOf(form.groups) };
  const rights = { publish: patternsOf(form.publish), consume, admin: form.admin, metrics: form.metrics };
  const limits = limitsOf(form);
  return {
    name: form.name.trim(),
    rights: rights as NewApiKey["rights"],
    ...(form.expires_at === "" ? {} : { expires_at: toInstant(form.expires_at) }),
    ...(Object.keys(limits).length === 0 ? {} : { limits }),
  };
}

/** Returns the settings of a key as its form edits them. */
export function settingsOfKey(key: ApiKey): KeySettings {
  const limits = Object.fromEntries(LIMITS.map((name) => [name, String(key.limits[name] ?? "")]));
  return { name: key.name, expires_at: localTime(key.expires_at ?? ""), ...(limits as Record<LimitName, string>) };
}

/** Returns the body that changes a key from its settings before to those after; null if they are the same. */
export function toKeyChange(before: KeySettings, after: KeySettings): ApiKeyChange | null {
  const change: ApiKeyChange = {};
  if (after.name !== before.name) change.name = after.name.trim();
  if (after.expires_at !== before.expires_at) {
    change.expires_at = after.expires_at === "" ? null : toInstant(after.expires_at);
  }
  if (LIMITS.some((name) => after[name] !== before[name])) change.limits = limitsOf(after);
  return Object.keys(change).length === 0 ? null : change;
}

function limitsOf(form: Record<LimitName, string>): NonNullable<NewApiKey["limits"]> {
  return Object.fromEntries(
    LIMITS.flatMap((name) => (form[name].trim() === "" ? [] : [[name, numberOr(form[name])]])),
  ) as NonNullable<NewApiKey["limits"]>;
}

const optionOf = (name: string) => `--${name.replaceAll("_", "-")}`;

/** Returns the options of `gantry key create` for a form. */
export function newKeyOptions(form: KeyForm): string[] {
  const many = (name: string, text: string) => patternsOf(text).flatMap((pattern) => [optionOf(name), pattern]);
  return [
    ...many("publish", form.publish),
    ...many("consume_topic", form.topics),
    ...many("consume_group", form.groups),
    ...(form.admin ? ["--admin"] : []),
    ...(form.metrics ? ["--metrics"] : []),
    ...(form.expires_at === "" ? [] : ["--expires", toInstant(form.expires_at)]),
    ...LIMITS.flatMap((name) => (form[name].trim() === "" ? [] : [optionOf(name), form[name].trim()])),
  ];
}

/** Returns the options of `gantry key set` for a change. */
export function keyChangeOptions(change: ApiKeyChange): string[] {
  const limits = change.limits === undefined ? [] : Object.entries(change.limits);
  return [
    ...(change.name === undefined ? [] : ["--name", change.name]),
    ...(change.expires_at === undefined
      ? []
      : change.expires_at === null
        ? ["--never-expires"]
        : ["--expires", change.expires_at]),
    ...(change.limits === undefined ? [] : ["--no-limits"]),
    ...limits.flatMap(([name, value]) => (value === null ? [] : [optionOf(name), String(value)])),
  ];
}

const BROWSERS: [RegExp, string][] = [
  // Later names stand in the texts of others: Edge and Opera say Chrome, and Chrome says Safari.
  [/\bEdg\/(\d+)/, "Edge"],
  [/\bOPR\/(\d+)/, "Opera"],
  [/\bFirefox\/(\d+)/, "Firefox"],
  [/\b(?:Headless)?Chrome\/(\d+)/, "Chrome"],
  [/\bVersion\/(\d+)[\d.]* .*Safari\//, "Safari"],
];
const SYSTEMS: [RegExp, string][] = [
  [/Windows/, "Windows"],
  [/Android/, "Android"],
  [/iPhone|iPad/, "iOS"],
  [/Mac OS X/, "macOS"],
  [/Linux/, "Linux"],
];

/** Returns a browser in a few words, such as Firefox 140, Linux; other programs keep their text. */
export function browserOf(userAgent: string): string {
  for (const [pattern, name] of BROWSERS) {
    const found = pattern.exec(userAgent);
    if (found === null) continue;
    const system = SYSTEMS.find(([each]) => each.test(userAgent))?.[1];
    return [`${name} ${found[1] ?? ""}`.trim(), system].filter(Boolean).join(", ");
  }
  return userAgent;
}
