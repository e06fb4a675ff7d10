import { makeKeys } from "./keys";
import { request, type Reply } from "./request";
import type { BodyOf, Schema } from "./types";

export type Topic = Schema<"Topic">;
export type TopicChange = BodyOf<"/v1/topics/{topic}", "put">;
export type NewMessage = BodyOf<"/v1/topics/{topic}/messages", "post">;
export type Sent = Schema<"Sent">;

export const topicKeys = makeKeys("topics");

const PAGE_SIZE = 1_000;

export async function listTopics(
  system: boolean,
  cursor: string | null,
  signal: AbortSignal,
): Promise<Schema<"TopicList">> {
  return (await request("get", "/v1/topics", { query: { limit: PAGE_SIZE, system, cursor }, signal })).data;
}

export function getTopic(topic: string, signal?: AbortSignal): Promise<Reply<Topic>> {
  return request("get", "/v1/topics/{topic}", { path: { topic }, signal });
}

export async function listQueues(topic: string, signal: AbortSignal): Promise<Schema<"Queue">[]> {
  return (await request("get", "/v1/topics/{topic}/queues", { path: { topic }, signal })).data.items;
}

/** Creates a topic. Throws ApiError 412 if it exists. */
export function createTopic(topic: string, body: TopicChange): Promise<Reply<Topic>> {
  return request("put", "/v1/topics/{topic}", { path: { topic }, body, headers: { "if-none-match": "*" } });
}

/** Changes a topic that has not changed since it was read. Throws ApiError 412 (`version-conflict`) if it has. */
export function changeTopic(topic: string, body: TopicChange, etag: string): Promise<Reply<Topic>> {
  return request("put", "/v1/topics/{topic}", { path: { topic }, body, headers: { "if-match": etag } });
}

export async function deleteTopic(topic: string): Promise<void> {
  await request("delete", "/v1/topics/{topic}", { path: { topic } });
}

/** Sends a message once: a second call with the same key is answered with the first one's result, if the topic has a window. */
export async function sendMessage(topic: string, body: NewMessage): Promise<Sent> {
  return (await request("post", "/v1/topics/{topic}/messages", { path: { topic }, body })).data as Sent;
}
