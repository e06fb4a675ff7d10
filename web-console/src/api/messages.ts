import { queryOptions } from "@tanstack/react-query";
import { makeKeys } from "./keys";
import { request } from "./request";
import type { Schema } from "./types";

export type Message = Schema<"StoredMessage">;

export const messageKeys = makeKeys("messages");

const FOUND_MAX = 100;

/** What a page of a search asks for: `key` by itself, or the other conditions together. */
export interface MessageSearch {
  key?: string | undefined;
  from?: string | undefined;
  to?: string | undefined;
  filter?: string | undefined;
  sql?: string | undefined;
  not_consumed_by?: string | undefined;
  cursor?: string | undefined;
}

/** Returns a page of the messages of a topic: by key the newest first, else the oldest first. */
export async function findMessages(
  topic: string,
  search: MessageSearch,
  signal: AbortSignal,
): Promise<Schema<"FoundMessages">> {
  const query = { ...search, limit: FOUND_MAX };
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
