import { infiniteQueryOptions, queryOptions } from "@tanstack/react-query";
import { apiKeyKeys, listApiKeys } from "@/api/api-keys";
import { request } from "@/api/request";
import { listSessions, listUsers, userKeys } from "@/api/users";
import { newestByName } from "@/models/access";

const EVERY_MS = 30_000;
const LOG_INS_READ = 500;

/** All users, in pages of 1,000 that are loaded one after the other. */
export const usersQuery = infiniteQueryOptions({
  queryKey: userKeys.list(),
  queryFn: ({ pageParam, signal }) => listUsers(pageParam, signal),
  initialPageParam: null as string | null,
  getNextPageParam: (last) => last.next_cursor,
  refetchInterval: EVERY_MS,
});

/** The last log-ins of all users by the audit trail, newest first, and whether there are no earlier ones. */
export const logInsQuery = queryOptions({
  queryKey: userKeys.list({ of: "log-ins" }),
  queryFn: async ({ signal }) => {
    const query = { kind: "user", action: "session.create", limit: LOG_INS_READ };
    const { data } = await request("get", "/v1/audit", { query, signal });
    return { newest: newestByName(data.items), isWhole: data.next_cursor === null };
  },
  refetchInterval: EVERY_MS,
});

export const sessionsQuery = (user: string) =>
  queryOptions({
    queryKey: userKeys.part(user, "sessions"),
    queryFn: ({ signal }) => listSessions(user, signal),
    refetchInterval: EVERY_MS,
  });

/** All API keys, in pages of 1,000 that are loaded one after the other. */
export const apiKeysQuery = (revoked: boolean) =>
  infiniteQueryOptions({
    queryKey: apiKeyKeys.list({ revoked }),
    queryFn: ({ pageParam, signal }) => listApiKeys(revoked, pageParam, signal),
    initialPageParam: null as string | null,
    getNextPageParam: (last) => last.next_cursor,
    refetchInterval: EVERY_MS,
  });
