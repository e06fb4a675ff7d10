import { infiniteQueryOptions } from "@tanstack/react-query";
import { makeKeys } from "@/api/keys";
import { request } from "@/api/request";
import type { Job } from "@/models/jobs";

const EVERY_MS = 5_000;
const PAGE = 100;

export const keys = makeKeys("jobs");

/** Jobs, newest first, page by page. `state` may be empty. */
export const jobsQuery = (state: string) =>
  infiniteQueryOptions({
    queryKey: keys.list({ state }),
    queryFn: async ({ pageParam, signal }) => {
      const query = { state, limit: PAGE, cursor: pageParam };
      return (await request("get", "/v1/jobs", { query, signal })).data;
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: EVERY_MS,
  });

/** Asks the gateways to end a job after the item under way. */
export async function cancelJob(job: string): Promise<Job> {
  return (await request("post", "/v1/jobs/{job}:cancel", { path: { job } })).data;
}
