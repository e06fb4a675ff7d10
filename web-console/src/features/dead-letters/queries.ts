import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { makeKeys } from "@/api/keys";
import { request } from "@/api/request";
import type { BodyOf, Schema } from "@/api/types";
import { redriveBody, type Redrive } from "@/models/dead-letters";
import { isActive, type Job } from "@/models/jobs";

const EVERY_MS = 30_000;
const JOB_EVERY_MS = 1_000;
const PAGE = 100;

const keys = makeKeys("dead-letters");
export const lettersKey = (group: string) => keys.detail(group);

/** Letters of a group, newest first, page by page. `filter` is a query of the contract. */
export const lettersQuery = (group: string, filter: Record<string, string>) =>
  infiniteQueryOptions({
    queryKey: keys.part(group, "letters", filter),
    queryFn: async ({ pageParam, signal }) => {
      const query = { ...filter, limit: PAGE, cursor: pageParam };
      const found = await request("get", "/v1/groups/{group}/dead-letters", { path: { group }, query, signal });
      return found.data;
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: EVERY_MS,
    enabled: group !== "",
  });

/** The job of a redrive, until it has ended. */
export const redriveJobQuery = (job: string) =>
  queryOptions({
    queryKey: ["jobs", "detail", job],
    queryFn: async ({ signal }): Promise<Job> =>
      (await request("get", "/v1/jobs/{job}", { path: { job }, signal })).data,
    refetchInterval: ({ state }) => (state.data !== undefined && !isActive(state.data) ? false : JOB_EVERY_MS),
    enabled: job !== "",
  });

/** Says which letters a redrive would send. */
export async function previewRedrive(group: string, redrive: Redrive): Promise<Schema<"RedriveDryRun">> {
  return (await post(group, redrive, true)) as Schema<"RedriveDryRun">;
}

/** Queues a redrive, and returns its job. */
export async function startRedrive(group: string, redrive: Redrive): Promise<Job> {
  return (await post(group, redrive, false)) as Job;
}

async function post(group: string, redrive: Redrive, dryRun: boolean): Promise<Schema<"RedriveDryRun"> | Job> {
  const body = redriveBody(redrive, dryRun) as BodyOf<"/v1/groups/{group}/dead-letters:redrive", "post">;
  return (await request("post", "/v1/groups/{group}/dead-letters:redrive", { path: { group }, body })).data;
}
