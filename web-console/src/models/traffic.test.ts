import { expect, test } from "vitest";
import { flowsOf, type Flow, type Statistics } from "./traffic";

const WINDOW = { messages: 1, bytes: 2, messages_per_s: 1, bytes_per_s: 2 };
const flow = (topic: string, kind: Flow["kind"], broker: string | null): Flow => ({
  ...{ kind, topic, group: "g", broker },
  ...{ minute: WINDOW, hour: WINDOW, day: WINDOW },
});
const statistics = (sums: Flow[] | null): Statistics => ({
  items: [flow("b", "dead", "b1"), flow("b", "delivered", "b2"), flow("b", "delivered", "b1"), flow("a", "dead", "b1")],
  sums,
  missing: [],
  truncated: false,
});
const names = (rows: Flow[]) => rows.map((row) => `${row.topic} ${row.kind} ${row.broker ?? ""}`);

test("sums are shown unless somebody asks for the brokers", () => {
  const sums = [flow("b", "dead", null), flow("b", "delivered", null)];
  const found = flowsOf(statistics(sums), false);
  expect([names(found.rows), found.isByBroker]).toEqual([["b delivered ", "b dead "], false]);
  expect(flowsOf(statistics(sums), true).isByBroker).toBe(true);
});

test("without sums the rows of the brokers that answered are shown, in order", () => {
  const found = flowsOf(statistics(null), false);
  expect(found.isByBroker).toBe(true);
  expect(names(found.rows)).toEqual(["a dead b1", "b delivered b1", "b delivered b2", "b dead b1"]);
});
