import { infiniteQueryOptions } from "@tanstack/react-query";
import { makeKeys } from "@/api/keys";
import { request } from "@/api/request";
import type { Answer } from "@/api/types";
import type { NewTime } from "@/models/scheduled";

const EVERY_MS = 10_000;
const PAGE = 50;
export const RECALL = "/v1/topics/{topic}/scheduled/{handle}:recall";
export const RESCHEDULE = "/v1/topics/{topic}/scheduled/{handle}:reschedule";

const keys = makeKeys("scheduled");
export const waitingKey = (topic: string) => keys.detail(topic);

/** What waits in a topic, by due time, page by page. `filter` is a query of the contract. */
export const waitingQuery = (topic: string, filter: Record<string, string>) =>
  infiniteQueryOptions({
    queryKey: keys.part(topic, "waiting", filter),
    queryFn: async ({ pageParam, signal }) => {
      const query = { ...filter, limit: PAGE, cursor: pageParam };
      return (await request("get", "/v1/topics/{topic}/scheduled", { path: { topic }, query, signal })).data;
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: EVERY_MS,
    enabled: topic !== "",
  });

/** Recalls a message, and returns whether it was in time: `recalled`, or `gone`. Throws ApiError. */
export async function recallMessage(topic: string, handle: string): Promise<"recalled" | "gone"> {
  return (await request("post", RECALL, { path: { topic, handle } })).data.outcome;
}

/** Lets a message wait until another time. Returns null for both if it was due already. Throws ApiError. */
export async function rescheduleMessage(
  topic: string,
  handle: string,
  body: NewTime,
): Promise<Answer<typeof RESCHEDULE, "post">> {
  return (await request("post", RESCHEDULE, { path: { topic, handle }, body })).data;
}
