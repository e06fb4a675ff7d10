import { makeKeys } from "./keys";
import { request, type Reply } from "./request";
import type { BodyOf, Schema } from "./types";

export type Group = Schema<"Group">;
export type GroupChange = BodyOf<"/v1/groups/{group}", "put">;
export type OffsetReset = Schema<"OffsetReset">;
export type ResetRequest = BodyOf<"/v1/groups/{group}/offsets:reset", "post">;
export type CloneRequest = BodyOf<"/v1/groups/{group}/offsets:clone", "post">;

export const groupKeys = makeKeys("groups");

const PAGE_SIZE = 1_000;

export async function listGroups(
  system: boolean,
  cursor: string | null,
  signal: AbortSignal,
): Promise<Schema<"GroupList">> {
  return (await request("get", "/v1/groups", { query: { limit: PAGE_SIZE, system, cursor }, signal })).data;
}

export function getGroup(group: string, signal?: AbortSignal): Promise<Reply<Group>> {
  return request("get", "/v1/groups/{group}", { path: { group }, signal });
}

/** Creates a group. Throws ApiError 412 (`version-conflict`) if it exists. */
export function createGroup(group: string, body: GroupChange): Promise<Reply<Group>> {
  return request("put", "/v1/groups/{group}", { path: { group }, body, headers: { "if-none-match": "*" } });
}

/** Changes a group that has not changed since it was read. Throws ApiError 412 (`version-conflict`) if it has. */
export function changeGroup(group: string, body: GroupChange, etag: string): Promise<Reply<Group>> {
  return request("put", "/v1/groups/{group}", { path: { group }, body, headers: { "if-match": etag } });
}

export async function deleteGroup(group: string): Promise<void> {
  await request("delete", "/v1/groups/{group}", { path: { group } });
}

export async function resetOffsets(group: string, body: ResetRequest): Promise<OffsetReset> {
  return (await request("post", "/v1/groups/{group}/offsets:reset", { path: { group }, body })).data;
}

export async function cloneOffsets(group: string, body: CloneRequest): Promise<OffsetReset> {
  return (await request("post", "/v1/groups/{group}/offsets:clone", { path: { group }, body })).data;
}

export async function undoReset(group: string, undo: string): Promise<OffsetReset> {
  return (await request("post", "/v1/groups/{group}/offsets:undo", { path: { group }, body: { undo } })).data;
}
