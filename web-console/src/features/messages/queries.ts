import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { findMessages, getMessage, messageKeys, type MessageSearch } from "@/api/messages";
import type { Schema } from "@/api/types";

/** What to search for; values that do not belong to `by` are ignored. */
export interface Search {
  by: string;
  topic: string;
  value: string;
  until: string;
  tags: string;
  sql: string;
}

const FILTERED: readonly string[] = ["time", "group", "live"];

/** Whether a way to search takes filters of tags or SQL. */
export function isFiltered(by: string): boolean {
  return FILTERED.includes(by);
}

/** Returns the names of what an address gives and this way to search does not use. */
export function unusedOf({ by, until, tags, sql }: Search): ("until" | "tags" | "sql")[] {
  const unused = {
    until: by === "time" ? "" : until,
    tags: isFiltered(by) ? "" : tags,
    sql: isFiltered(by) ? "" : sql,
  };
  return (["until", "tags", "sql"] as const).filter((name) => unused[name] !== "");
}

/** Returns the conditions of a search that is not by id. */
export function conditionsOf({ by, value, until, tags, sql }: Search): MessageSearch {
  if (by === "key") return { key: value };
  const filter = { filter: tags === "" ? undefined : tags, sql: sql === "" ? undefined : sql };
  if (by === "group") return { not_consumed_by: value, ...filter };
  return { from: value, to: until === "" ? undefined : until, ...filter };
}

/** The messages of a search, page by page. By key and id there is one page. */
export const searchQuery = (search: Search) =>
  infiniteQueryOptions({
    queryKey: messageKeys.list({ ...search }),
    queryFn: async ({ pageParam, signal }): Promise<Schema<"FoundMessages">> => {
      const { by, topic, value } = search;
      if (by === "id") {
        return { items: [await getMessage(value, topic, signal)], next_cursor: null, scanned: "1", truncated: false };
      }
      return findMessages(topic, { ...conditionsOf(search), cursor: pageParam }, signal);
    },
    initialPageParam: undefined as string | undefined,
    getNextPageParam: (last) => last.next_cursor,
    staleTime: Infinity,
  });

export const messageQuery = (id: string, topic: string) =>
  queryOptions({
    queryKey: messageKeys.detail(`${topic} ${id}`),
    queryFn: ({ signal }) => getMessage(id, topic, signal),
    staleTime: Infinity,
  });
