/**
 * Frames of the stream (openapi/websocket.md, subprotocol gantry.v1.json). Offsets and counts of offsets are strings.
 * Frames of later versions may have more fields and other types; both are passed on or ignored, never an error.
 */
export interface LiveMessage {
  message_id: string;
  topic: string;
  broker: string;
  queue_id: number;
  queue_offset: string;
  body: string;
  encoding?: "text" | "base64";
  tag?: string | null;
  keys?: string[];
  receipt: string;
  [field: string]: unknown;
}

export interface StreamProblem {
  type: string;
  title: string;
  status: number;
  detail: string;
}

export type ServerFrame =
  | { type: "welcome"; session: string; client_id: string; ping_ms: number; limits: Record<string, unknown> }
  | { type: "subscribed"; id?: string | number; subscription: string; skipped?: string }
  | { type: "assigned"; subscription: string; queues: { broker: string; queue_id: number; next_offset: string }[] }
  | { type: "messages"; subscription: string; receipt: string; messages: LiveMessage[] }
  | {
      type: "state";
      id?: string | number;
      subscription: string;
      in_flight: number;
      reason?: string;
      /** Stored messages that a live tail has not looked at since its start. */
      skipped?: string;
    }
  | { type: "error"; id?: string | number; subscription?: string; receipt?: string; problem: StreamProblem }
  | { type: "goodbye"; retry: boolean; after_ms?: number; reason: string };

export interface Subscribe {
  group: string;
  topic: string;
  filter?: string | { sql: string };
  from?: string;
  credit?: { messages: number; bytes: number };
  batch?: number;
  max_reconsume_times?: number;
}

/** A live tail: the messages of a topic as they arrive, without a group. */
export interface Tail {
  mode: "tail";
  topic: string;
  filter?: string | { sql: string };
  from?: string;
  rate_per_s?: number;
  credit?: { messages: number; bytes: number };
}

const KNOWN = new Set(["welcome", "subscribed", "assigned", "messages", "state", "error", "goodbye"]);

/** Returns a frame of the server; null if its type is unknown or it is no frame at all. */
export function readFrame(text: string): ServerFrame | null {
  try {
    const value: unknown = JSON.parse(text);
    const type = typeof value === "object" && value !== null && "type" in value ? value.type : null;
    return typeof type === "string" && KNOWN.has(type) ? (value as ServerFrame) : null;
  } catch {
    return null;
  }
}
