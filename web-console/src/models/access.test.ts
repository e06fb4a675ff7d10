import { expect, test } from "vitest";
import type { ApiKey } from "@/api/api-keys";
import type { User } from "@/api/users";
import {
  browserOf,
  grantsSomething,
  keyChangeOptions,
  lastLogInOf,
  NEW_KEY,
  newestByName,
  newKeyOptions,
  patternsOf,
  rightsOf,
  settingsOfKey,
  stateOfKey,
  toKeyChange,
  toNewKey,
} from "./access";
import type { AuditEntry } from "./audit";
import { localTime, toInstant } from "./times";

const NO_LIMITS = { messages_per_s: null, bytes_per_s: null, connections: null, in_flight: null };

const key = (more: Partial<ApiKey> = {}): ApiKey => ({
  id: "key-1",
  name: "pricing",
  rights: { publish: ["A"], consume: { topics: ["B*"], groups: ["G"] }, admin: false, metrics: true } as never,
  limits: NO_LIMITS,
  created_at: "2026-01-01T00:00:00.000Z",
  expires_at: null,
  rotated_at: null,
  previous_valid_until: null,
  revoked_at: null,
  last_used_at: null,
  ...more,
});

const user: User = {
  user: "ada",
  role: "viewer",
  disabled: false,
  created_at: "2026-01-02T00:00:00.000Z",
  password_changed_at: "2026-01-02T00:00:00.000Z",
  log_in_waits: [],
};
const entry = (name: string, at: string) => ({ name, at }) as AuditEntry;

test("the last log-in of a user is the newest one since the creation", () => {
  const entries = [
    entry("grace", "2026-01-05T00:00:00.000Z"),
    entry("ada", "2026-01-04T00:00:00.000Z"),
    entry("ada", "2026-01-03T00:00:00.000Z"),
  ];
  expect(lastLogInOf(user, newestByName(entries), true)).toEqual({ at: "2026-01-04T00:00:00.000Z", isWhole: true });
  const earlier = newestByName([entry("ada", "2026-01-01T00:00:00.000Z")]);
  expect(lastLogInOf(user, earlier, false)).toEqual({ at: null, isWhole: false });
});

test("a key is valid until its end, and its last week is said", () => {
  const now = Date.parse("2026-01-10T00:00:00.000Z");
  const states = [null, "2026-02-01T00:00:00Z", "2026-01-16T23:59:59Z", "2026-01-10T00:00:00Z"].map((expires_at) =>
    stateOfKey(key({ expires_at }), now),
  );
  expect(states).toEqual(["valid", "valid", "ending", "expired"]);
  expect(stateOfKey(key({ revoked_at: "2026-01-01T00:00:00Z", expires_at: "2026-01-02T00:00:00Z" }), now)).toBe(
    "revoked",
  );
});

test("rights that an answer leaves out are not granted", () => {
  expect(rightsOf(key())).toEqual({ publish: ["A"], topics: ["B*"], groups: ["G"], admin: false, metrics: true });
  const none = { publish: [], topics: [], groups: [], admin: false, metrics: false };
  expect(rightsOf(key({ rights: { consume: {} } as never }))).toEqual(none);
});

test("patterns are separated by commas or white space", () => {
  expect(patternsOf(" a*, b ,,c\nd ")).toEqual(["a*", "b", "c", "d"]);
});

test("a form of a new key grants something only with a right", () => {
  expect(grantsSomething(NEW_KEY)).toBe(false);
  expect(grantsSomething({ ...NEW_KEY, groups: " , " })).toBe(false);
  expect(grantsSomething({ ...NEW_KEY, groups: "G" })).toBe(true);
  expect(grantsSomething({ ...NEW_KEY, metrics: true })).toBe(true);
});

test("a new key is sent without what is empty, and what is no number is sent as it is", () => {
  expect(toNewKey({ ...NEW_KEY, name: " n ", publish: "a, b" })).toEqual({
    name: "n",
    rights: { publish: ["a", "b"], consume: { topics: [], groups: [] }, admin: false, metrics: false },
  });
  const form = { ...NEW_KEY, name: "n", admin: true, expires_at: "2030-01-31T08:30", connections: "5", in_flight: "x" };
  expect(toNewKey(form)).toMatchObject({
    expires_at: new Date("2030-01-31T08:30").toISOString(),
    limits: { connections: 5, in_flight: "x" },
  });
  expect(newKeyOptions({ ...form, publish: "a* b", topics: "t", groups: "g", metrics: true })).toEqual([
    ...["--publish", "a*", "--publish", "b", "--consume-topic", "t", "--consume-group", "g", "--admin", "--metrics"],
    ...["--expires", new Date("2030-01-31T08:30").toISOString(), "--connections", "5", "--in-flight", "x"],
  ]);
});

test("a change of a key names what differs, and replaces the limits as a whole", () => {
  const before = settingsOfKey(key({ limits: { ...NO_LIMITS, connections: 5 } }));
  expect(toKeyChange(before, before)).toBeNull();
  expect(toKeyChange(before, { ...before, name: "other" })).toEqual({ name: "other" });
  const change = toKeyChange(before, { ...before, in_flight: "7" });
  expect(change).toEqual({ limits: { connections: 5, in_flight: 7 } });
  expect(keyChangeOptions(change ?? {})).toEqual(["--no-limits", "--connections", "5", "--in-flight", "7"]);
});

test("an emptied end of a key is no end", () => {
  const before = settingsOfKey(key({ expires_at: "2030-01-31T08:30:00.000Z" }));
  expect(before.expires_at).not.toBe("");
  const change = toKeyChange(before, { ...before, expires_at: "" });
  expect(change).toEqual({ expires_at: null });
  expect(keyChangeOptions(change ?? {})).toEqual(["--never-expires"]);
});

test("a local time of a form is the same instant again", () => {
  expect(toInstant(localTime("2030-01-31T08:30:00.000Z"))).toBe("2030-01-31T08:30:00.000Z");
  expect([localTime(""), localTime("never")]).toEqual(["", ""]);
});

test.each([
  [
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) HeadlessChrome/140.0.0.0 Safari/537.36",
    "Chrome 140, Linux",
  ],
  [
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36 Edg/140.0.1",
    "Edge 140, Windows",
  ],
  ["Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:142.0) Gecko/20100101 Firefox/142.0", "Firefox 142, macOS"],
  [
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Mobile/15E148 Safari/604.1",
    "Safari 18, iOS",
  ],
  ["python-httpx/0.28", "python-httpx/0.28"],
])("a browser has a short name: %s", (agent, name) => {
  expect(browserOf(agent)).toBe(name);
});
