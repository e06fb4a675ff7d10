import { makeKeys } from "./keys";
import { request } from "./request";
import type { Answer, BodyOf, Schema } from "./types";

export type ApiKey = Schema<"Key">;
export type NewApiKey = BodyOf<"/v1/keys", "post">;
export type ApiKeyChange = BodyOf<"/v1/keys/{id}", "put">;
/** A key with its secret, which no later answer has. */
export type MadeKey = Answer<"/v1/keys", "post">;

export const apiKeyKeys = makeKeys("api-keys");

const PAGE_SIZE = 1_000;

export async function listApiKeys(
  revoked: boolean,
  cursor: string | null,
  signal: AbortSignal,
): Promise<{ items: ApiKey[]; next_cursor: string | null }> {
  return (await request("get", "/v1/keys", { query: { limit: PAGE_SIZE, revoked, cursor }, signal })).data;
}

export async function createApiKey(body: NewApiKey): Promise<MadeKey> {
  return (await request("post", "/v1/keys", { body })).data;
}

export async function changeApiKey(id: string, body: ApiKeyChange): Promise<ApiKey> {
  return (await request("put", "/v1/keys/{id}", { path: { id }, body })).data;
}

/** Gives a key another secret; the present one stays valid for `overlap`, a duration such as 24h. */
export async function rotateApiKey(id: string, overlap: string): Promise<MadeKey> {
  return (await request("post", "/v1/keys/{id}:rotate", { path: { id }, body: { overlap } })).data;
}

export async function revokeApiKey(id: string): Promise<void> {
  await request("delete", "/v1/keys/{id}", { path: { id } });
}
