import { request, type Reply } from "./request";
import type { BodyOf, Schema } from "./types";

export type Objective = Schema<"Objective">;
export type ObjectiveChange = BodyOf<"/v1/groups/{group}/objective", "put">;

const OBJECTIVES_READ = 1_000;

/** The objectives of a group: that of all its topics, and those of single topics. */
export async function listObjectives(group: string, signal: AbortSignal): Promise<Objective[]> {
  return (await request("get", "/v1/objectives", { query: { group, limit: OBJECTIVES_READ }, signal })).data.items;
}

/** `topic` null stands for all topics without an objective of their own. */
export function getObjective(group: string, topic: string | null): Promise<Reply<Objective>> {
  return request("get", "/v1/groups/{group}/objective", { path: { group }, query: { topic } });
}

/**
 * Changes the objective of the version `etag`, or creates it if `etag` is empty. Throws ApiError 412
 * (`version-conflict`) if it has changed since, or exists already.
 */
export function putObjective(
  group: string,
  topic: string | null,
  body: ObjectiveChange,
  etag: string,
): Promise<Reply<Objective>> {
  const headers: Record<string, string> = etag === "" ? { "if-none-match": "*" } : { "if-match": etag };
  return request("put", "/v1/groups/{group}/objective", { path: { group }, query: { topic }, body, headers });
}

export async function deleteObjective(group: string, topic: string | null): Promise<void> {
  await request("delete", "/v1/groups/{group}/objective", { path: { group }, query: { topic } });
}
