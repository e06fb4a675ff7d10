import { expect, test } from "vitest";
import { conflicts, differences, rebase } from "./changes";
import { NEW_TOPIC, SETTINGS } from "./topics";

test("only what differs is changed", () => {
  expect(differences(SETTINGS, NEW_TOPIC, { ...NEW_TOPIC, perm: "r", order: true })).toEqual([
    { name: "perm", before: "rw", after: "r" },
    { name: "order", before: "false", after: "true" },
  ]);
});

test("of two people who edit one topic, the second sees the difference and keeps the own changes", () => {
  const theirs = { ...NEW_TOPIC, read_queues: "8", perm: "r" as const };
  const mine = { ...NEW_TOPIC, read_queues: "6", order: true };
  expect(conflicts(SETTINGS, NEW_TOPIC, theirs, mine)).toEqual([
    { name: "read_queues", read: "4", theirs: "8", mine: "6" },
    { name: "perm", read: "rw", theirs: "r", mine: "rw" },
  ]);
  expect(rebase(SETTINGS, NEW_TOPIC, theirs, mine)).toEqual({ ...theirs, read_queues: "6", order: true });
});
