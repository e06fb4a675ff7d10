import { useInfiniteQuery } from "@tanstack/react-query";
import { groupKeys, listGroups } from "@/api/groups";
import { listTopics, topicKeys } from "@/api/topics";
import { searchNames } from "@/models/search";
import { useAllPages } from "./paging";
import { useOperations } from "./session";

const SHOWN_MAX = 8;

/** Topics and groups whose names have the words of a search. They are read when somebody searches, and then kept. */
export function useFoundNames(search: string): { topics: readonly string[]; groups: readonly string[] } {
  const has = useOperations();
  const isSearching = search.trim() !== "";
  const paging = {
    initialPageParam: null as string | null,
    getNextPageParam: (last: { next_cursor: string | null }) => last.next_cursor,
  };
  const topics = useInfiniteQuery({
    // The keys of the lists, so that those who have read a list read it once.
    queryKey: topicKeys.list({ system: false }),
    queryFn: ({ pageParam, signal }) => listTopics(false, pageParam, signal),
    enabled: isSearching && has(["GET /v1/topics"]),
    ...paging,
  });
  const groups = useInfiniteQuery({
    queryKey: groupKeys.list({ system: false }),
    queryFn: ({ pageParam, signal }) => listGroups(false, pageParam, signal),
    enabled: isSearching && has(["GET /v1/groups"]),
    ...paging,
  });
  useAllPages(isSearching ? topics : NOTHING);
  useAllPages(isSearching ? groups : NOTHING);
  if (!isSearching) return { topics: [], groups: [] };
  const found = (names: readonly string[]) => searchNames(names, search, (name) => name).slice(0, SHOWN_MAX);
  return {
    topics: found(topics.data?.pages.flatMap((page) => page.items.map((item) => item.topic)) ?? []),
    groups: found(groups.data?.pages.flatMap((page) => page.items.map((item) => item.group)) ?? []),
  };
}

const NOTHING = { hasNextPage: false, isFetchingNextPage: false, isError: false, fetchNextPage: () => undefined };
