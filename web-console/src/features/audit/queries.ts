import { infiniteQueryOptions } from "@tanstack/react-query";
import { makeKeys } from "@/api/keys";
import { request } from "@/api/request";

const EVERY_MS = 30_000;
const PAGE = 100;

const keys = makeKeys("audit");

/** Changes, newest first, page by page. `filter` is a query of the contract. */
export const auditQuery = (filter: Record<string, string>) =>
  infiniteQueryOptions({
    queryKey: keys.list(filter),
    queryFn: async ({ pageParam, signal }) => {
      const query = { ...filter, limit: PAGE, cursor: pageParam };
      return (await request("get", "/v1/audit", { query, signal })).data;
    },
    initialPageParam: "",
    getNextPageParam: (page) => page.next_cursor,
    refetchInterval: EVERY_MS,
  });
