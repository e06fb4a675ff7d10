import { QueryClient } from "@tanstack/react-query";
import { asApiError } from "@/api/api-error";

const RETRIES_MAX = 2;
const FRESH_MS = 5_000;
const PAUSE_MS_MAX = 10_000;

/** Returns the cache of answers. Reads that may succeed later are tried again; changes never are. */
export function makeQueryClient(): QueryClient {
  return new QueryClient({
    defaultOptions: {
      queries: {
        staleTime: FRESH_MS,
        retry: (failures, error) => failures < RETRIES_MAX && asApiError(error).isRetryable,
        retryDelay: (attempt) => Math.min(PAUSE_MS_MAX, 500 * 2 ** attempt),
        // The gateway may be on this machine, without any network.
        networkMode: "always",
      },
      mutations: { networkMode: "always", retry: false },
    },
  });
}
