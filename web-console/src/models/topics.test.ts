import { expect, test } from "vitest";
import type { Topic } from "@/api/topics";
import { NEW_TOPIC, optionsOf, searchTopics, toChange, toSettings, windowText } from "./topics";

const topic = (name: string, more: Partial<Topic> = {}): Topic => ({
  topic: name,
  read_queues: 4,
  write_queues: 4,
  perm: "rw",
  order: false,
  brokers: null,
  duplicate_window_ms: 0,
  state: "applied",
  pending: [],
  origin: "api",
  observed: [],
  metadata: "available",
  created_at: null,
  updated_at: null,
  ...more,
});

test("settings come back as they were read", () => {
  const settings = toSettings(topic("T", { brokers: ["b", "a"], duplicate_window_ms: 600_000, order: true }));
  expect(settings).toMatchObject({ brokers: "b, a", duplicate_window: "10m", order: true });
  expect(toChange(settings, ["brokers", "duplicate_window", "read_queues"])).toEqual({
    brokers: ["b", "a"],
    duplicate_window: "10m",
    read_queues: 4,
  });
  expect(toSettings(topic("T"))).toEqual(NEW_TOPIC);
  expect(toChange(NEW_TOPIC, ["brokers", "duplicate_window"])).toEqual({ brokers: null, duplicate_window: null });
});

test("a window is written in the largest unit that keeps it whole", () => {
  expect([0, null, 1_000, 90_000, 3_600_000, 1_500].map(windowText)).toEqual(["", "", "1s", "90s", "1h", "1500ms"]);
});

test("5,000 topics are searched by words in any order", () => {
  const topics = Array.from({ length: 5_000 }, (_, at) => topic(`orders-eu-${at}`));
  expect(searchTopics(topics, "4999 ORDERS").map((each) => each.topic)).toEqual(["orders-eu-4999"]);
  expect(searchTopics(topics, " ")).toHaveLength(5_000);
  expect(searchTopics(topics, "<script>")).toEqual([]);
});

test("settings are options of the command, also those that are taken away", () => {
  const names = ["read_queues", "order", "duplicate_window", "brokers"] as const;
  const words = ["--read-queues", "4", "--no-order", "--duplicate-window", "off", "--all-brokers"];
  expect(optionsOf(NEW_TOPIC, names)).toEqual(words);
  const settings = { ...NEW_TOPIC, order: true, duplicate_window: " 10m", brokers: "b, a" };
  expect(optionsOf(settings, names).slice(2)).toEqual([
    "--order",
    "--duplicate-window",
    "10m",
    "--broker",
    "b",
    "--broker",
    "a",
  ]);
});
