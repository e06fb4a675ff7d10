import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import {
  findByKey,
  getMessage,
  messageKeys,
  placesAt,
  placesOf,
  readFrom,
  type Place,
  type Scan,
} from "@/api/messages";

/** What to search for; values that do not belong to `by` are ignored. */
export interface Search {
  by: string;
  topic: string;
  value: string;
  tags: string;
  sql: string;
}

/** The messages of a search, page by page. By key and id there is one page. */
export const searchQuery = (search: Search, noOffset: string) =>
  infiniteQueryOptions({
    queryKey: messageKeys.list({ ...search }),
    queryFn: async ({ pageParam, signal }): Promise<Scan & { isPart: boolean }> => {
      const { by, topic, value } = search;
      if (by === "id") return { ...onePage, messages: [await getMessage(value, topic, signal)] };
      if (by === "key") {
        const found = await findByKey(topic, value, signal);
        return { ...onePage, messages: found.items, isPart: found.truncated };
      }
      if (pageParam !== null) return { ...(await readFrom(topic, pageParam, search, signal)), isPart: false };
      const start =
        by === "group" ? await placesOf(topic, value, signal, noOffset) : await placesAt(topic, value, signal);
      const scan = await readFrom(topic, start.places, search, signal);
      return { ...scan, gaps: [...start.gaps, ...scan.gaps], isPart: false };
    },
    initialPageParam: null as Place[] | null,
    getNextPageParam: (last) => (last.next.length === 0 ? undefined : last.next),
    staleTime: Infinity,
  });

const onePage = { next: [], gaps: [], isPart: false };

export const messageQuery = (id: string, topic: string) =>
  queryOptions({
    queryKey: messageKeys.detail(`${topic} ${id}`),
    queryFn: ({ signal }) => getMessage(id, topic, signal),
    staleTime: Infinity,
  });
