import { useQuery } from "@tanstack/react-query";
import { groupLagQuery, offsetsQuery } from "./queries";

/** The topics of a group: those with committed offsets, and those of the latest report, without retry topics. */
export function useTopicsOf(group: string): string[] {
  const offsets = useQuery(offsetsQuery(group));
  const lag = useQuery(groupLagQuery(group));
  const names = [...(offsets.data ?? []), ...(lag.data?.topics ?? [])].map((row) => row.topic);
  return [...new Set(names)].filter((name) => !name.startsWith("%")).sort();
}
