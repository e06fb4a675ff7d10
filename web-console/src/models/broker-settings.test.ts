import { expect, test } from "vitest";
import { changesOf, edited, findSettings, rebased, toRequest, type Edits, type Setting } from "./broker-settings";

const setting = (name: string, value: string, change: Partial<Setting> = {}): Setting => ({
  name,
  value,
  default: value,
  live: true,
  changed: false,
  ...change,
});
const SETTINGS = [
  setting("max_message_size", "9223372036854775807"),
  setting("flush_disk_type", "async", { live: false }),
  setting("transaction_check_max", "15", { changed: true, default: "10" }),
];

test("a change has the value before it, digit by digit, and what was typed back is no change", () => {
  const type = (edits: Edits, at: number, text: string) => edited(edits, SETTINGS[at] as Setting, text);
  const typed = type(type(type({}, 0, "9223372036854775806"), 2, "16"), 2, "15");
  const changes = changesOf(SETTINGS, typed);
  expect(changes).toEqual([{ name: "max_message_size", before: "9223372036854775807", after: "9223372036854775806" }]);
  expect(toRequest(changes)).toEqual({
    settings: { max_message_size: "9223372036854775806" },
    expected: { max_message_size: "9223372036854775807" },
  });
});

test("a change is asked for over the value that was seen, not over one that came while it was typed", () => {
  const [first] = [setting("transaction_check_max", "15")];
  const edits = edited({}, first, "4");
  const now = [setting("transaction_check_max", "20")];
  const over = edited(edits, now[0] as Setting, "44");
  expect(toRequest(changesOf(now, over)).expected).toEqual({ transaction_check_max: "15" });
  const after = rebased(over, [{ name: "transaction_check_max", actual: "20" }]);
  expect(toRequest(changesOf(now, after)).expected).toEqual({ transaction_check_max: "20" });
  expect(changesOf([setting("transaction_check_max", "44")], after)).toEqual([]);
});

test("settings are found by name and value, and by whether they can be or were changed", () => {
  const any = { search: "", onlyLive: false, onlyChanged: false };
  const names = (found: Setting[]) => found.map(({ name }) => name);
  expect(findSettings(SETTINGS, any)).toHaveLength(3);
  expect(names(findSettings(SETTINGS, { ...any, search: "ASYNC" }))).toEqual(["flush_disk_type"]);
  expect(names(findSettings(SETTINGS, { ...any, onlyLive: true }))).toEqual([
    "max_message_size",
    "transaction_check_max",
  ]);
  expect(names(findSettings(SETTINGS, { ...any, onlyChanged: true }))).toEqual(["transaction_check_max"]);
});
