import { makeKeys } from "./keys";
import { request } from "./request";
import type { BodyOf, Schema } from "./types";

export type User = Schema<"User">;
export type UserChange = BodyOf<"/v1/users/{user}", "put">;
export type Session = Schema<"Session">;

export const userKeys = makeKeys("users");

const PAGE_SIZE = 1_000;

export async function listUsers(
  cursor: string | null,
  signal: AbortSignal,
): Promise<{ items: User[]; next_cursor: string | null }> {
  return (await request("get", "/v1/users", { query: { limit: PAGE_SIZE, cursor }, signal })).data;
}

/** Creates a user. Throws ApiError 412 (`version-conflict`) if there is one with this name. */
export async function createUser(user: string, body: UserChange): Promise<User> {
  return (await request("put", "/v1/users/{user}", { path: { user }, body, headers: { "if-none-match": "*" } })).data;
}

/** Changes a user who exists. Throws ApiError: 409 (`last-admin`) if nobody else is an admin who can log in. */
export async function changeUser(user: string, body: UserChange): Promise<User> {
  return (await request("put", "/v1/users/{user}", { path: { user }, body, headers: { "if-match": "*" } })).data;
}

export async function deleteUser(user: string): Promise<void> {
  await request("delete", "/v1/users/{user}", { path: { user } });
}

/** The sessions of a user, newest first. Users may read their own, admins those of everybody. */
export async function listSessions(user: string, signal: AbortSignal): Promise<Session[]> {
  return (await request("get", "/v1/users/{user}/sessions", { path: { user }, signal })).data.items;
}

export async function endSession(user: string, session: string): Promise<void> {
  await request("delete", "/v1/users/{user}/sessions/{session}", { path: { user, session } });
}

export async function endSessions(user: string): Promise<void> {
  await request("delete", "/v1/users/{user}/sessions", { path: { user } });
}
