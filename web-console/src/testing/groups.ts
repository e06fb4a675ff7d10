/** Answers of the gateway about groups, for tests. */
import type { FakeAnswer } from "./gateway";

export const group = (name: string, more: object = {}) => ({
  group: name,
  retry_max_times: 16,
  retry_queues: 1,
  consume: true,
  from_min: true,
  broadcast: true,
  orderly: false,
  consume_timeout_minutes: 15,
  notify_changes: true,
  retry_policy: null,
  state: "applied",
  pending: [],
  origin: "api",
  observed: [],
  metadata: "available",
  created_at: null,
  updated_at: null,
  ...more,
});

export const lagRow = (name: string, more: object = {}) => ({
  level: "topic",
  group: name,
  topic: "orders",
  broker: null,
  queue_id: null,
  as_of: "2026-01-01T00:00:00.000Z",
  lag_messages: 1_200,
  lag_seconds: 90,
  in_rate: 4,
  out_rate: 1,
  drain_eta_s: 600,
  drain_eta_low_s: 300,
  drain_eta_high_s: null,
  retention_left_s: null,
  clients: 2,
  owners: null,
  verdict: "STALLED",
  cause: "two members own queues and commit nothing",
  next_step: "Look at the logs of the members.",
  evidence: null,
  ...more,
});

export const report = (rows: object[]): FakeAnswer => ({
  json: { run: "r1", as_of: "2026-01-01T00:00:00.000Z", items: rows, next_cursor: null },
});
export const page = (items: object[], next_cursor: string | null = null): FakeAnswer => ({
  json: { items, next_cursor, metadata: "available" },
});
export const offset = (id: number, committed: string | null) => ({
  topic: "orders",
  broker: "broker-a",
  queue_id: id,
  committed_offset: committed,
  min_offset: "0",
  max_offset: "9007199254740995",
  lag: committed === null ? null : "2",
});
export const moved = (outcome: string, more: object = {}) => ({
  items: [
    {
      topic: "orders",
      broker: "broker-a",
      queue_id: 0,
      from: "30",
      to: "10",
      messages: "20",
      first: { message_id: "M1", stored_at: "2026-01-01T00:00:00.000Z", keys: ["order-10"] },
      last: { message_id: "M2", stored_at: "2026-01-01T00:10:00.000Z", keys: [] },
      note: null,
      outcome,
    },
  ],
  messages: "20",
  undo: null,
  truncated: false,
  ...more,
});
