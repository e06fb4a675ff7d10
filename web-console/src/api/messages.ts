import { queryOptions } from "@tanstack/react-query";
import { asApiError } from "./api-error";
import { makeKeys } from "./keys";
import { request } from "./request";
import { listQueues } from "./topics";
import type { Schema } from "./types";

export type Message = Schema<"StoredMessage">;

export const messageKeys = makeKeys("messages");

const FOUND_MAX = 100;
const ROWS_A_QUEUE = 32;

/** A place in a queue to read from. */
export interface Place {
  broker: string;
  queue: number;
  offset: string;
}

export interface MessageFilter {
  tags: string;
  sql: string;
}

/** Queues that can't be read, with the reason for each; their messages are unknown. */
export interface Gap {
  queue: string;
  reason: string;
}

export interface Scan {
  messages: Message[];
  /** Places to go on from; none at the end of all queues. */
  next: Place[];
  gaps: Gap[];
}

export async function findByKey(topic: string, key: string, signal: AbortSignal): Promise<Schema<"FoundMessages">> {
  const query = { key, limit: FOUND_MAX };
  return (await request("get", "/v1/topics/{topic}/messages", { path: { topic }, query, signal })).data;
}

/** Reads one message by its stored id, or by its message id if the topic is given. */
export async function getMessage(id: string, topic: string, signal: AbortSignal): Promise<Message> {
  return (await request("get", "/v1/messages/{id}", { path: { id }, query: { topic }, signal })).data;
}

/** The life of a message: by its stored id, or by its message id if the topic is given. */
export const lifeQuery = (id: string, topic: string) =>
  queryOptions({
    queryKey: messageKeys.part(`${topic} ${id}`, "life"),
    queryFn: async ({ signal }): Promise<Schema<"MessageLife">> =>
      (await request("get", "/v1/messages/{id}/trace", { path: { id }, query: { topic }, signal })).data,
  });

/** A ticket for one connection of a WebSocket. */
export async function getTicket(): Promise<string> {
  return (await request("post", "/v1/tickets", {})).data.ticket;
}

/** Returns the places of a time in all queues of a topic. */
export async function placesAt(
  topic: string,
  at: string,
  signal: AbortSignal,
): Promise<{ places: Place[]; gaps: Gap[] }> {
  const queues = await listQueues(topic, signal);
  return eachQueue(queues, async ({ broker, queue_id }) => {
    const path = { topic, broker, queue_id: String(queue_id) };
    const found = await request("get", "/v1/topics/{topic}/queues/{broker}/{queue_id}/offsets", {
      path,
      query: { at },
      signal,
    });
    return { broker, queue: queue_id, offset: found.data.offset };
  });
}

/** Returns the places from which a group has not consumed a topic. A queue without a committed offset is a gap. */
export async function placesOf(
  topic: string,
  group: string,
  signal: AbortSignal,
  noOffset: string,
): Promise<{ places: Place[]; gaps: Gap[] }> {
  const { data } = await request("get", "/v1/groups/{group}/offsets", { path: { group }, query: { topic }, signal });
  const places: Place[] = [];
  const gaps: Gap[] = [];
  for (const { broker, queue_id: queue, committed_offset: offset } of data.items) {
    if (offset === null) gaps.push({ queue: `${broker} / ${queue}`, reason: noOffset });
    else places.push({ broker, queue, offset });
  }
  return { places, gaps };
}

/** Reads on from places, a few messages of each queue, sorted by the time of storing. */
export async function readFrom(
  topic: string,
  places: readonly Place[],
  filter: MessageFilter,
  signal: AbortSignal,
): Promise<Scan> {
  const next: Place[] = [];
  const { places: read, gaps } = await eachQueue(
    places.map((place) => ({ ...place, queue_id: place.queue })),
    async ({ broker, queue, offset }) => {
      const path = { topic, broker, queue_id: String(queue) };
      const query = { offset, limit: ROWS_A_QUEUE, filter: filter.tags, sql: filter.sql };
      const { data } = await request("get", "/v1/topics/{topic}/queues/{broker}/{queue_id}/messages", {
        path,
        query,
        signal,
      });
      if (BigInt(data.next_offset) < BigInt(data.max_offset)) next.push({ broker, queue, offset: data.next_offset });
      return data.messages;
    },
  );
  const messages = read.flat().sort((a, b) => a.stored_at.localeCompare(b.stored_at));
  return { messages, next, gaps };
}

async function eachQueue<Q extends { broker: string; queue_id: number }, T>(
  queues: readonly Q[],
  read: (queue: Q) => Promise<T>,
): Promise<{ places: T[]; gaps: Gap[] }> {
  const answers = await Promise.allSettled(queues.map(read));
  const places: T[] = [];
  const gaps: Gap[] = [];
  answers.forEach((answer, at) => {
    const queue = queues[at];
    if (answer.status === "fulfilled") places.push(answer.value);
    else
      gaps.push({
        queue: `${queue?.broker ?? ""} / ${queue?.queue_id ?? ""}`,
        reason: asApiError(answer.reason).message,
      });
  });
  // A wrong filter is refused by every queue: that is an error of the search and no gap.
  const first = answers.find((answer) => answer.status === "rejected");
  if (first !== undefined && places.length === 0) throw first.reason;
  return { places, gaps };
}
