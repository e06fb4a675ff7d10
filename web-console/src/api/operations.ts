/** What this gateway can do. A page whose operations are absent from the contract is absent, too. */
import { queryOptions } from "@tanstack/react-query";
import { request } from "./request";

const METHODS = ["get", "put", "post", "delete"] as const;

/** `GET /v1/topics`, as the contract writes it. */
export type OperationName = `${"GET" | "PUT" | "POST" | "DELETE"} /${string}`;

export const operationsQuery = queryOptions({
  queryKey: ["operations"],
  queryFn: async ({ signal }): Promise<ReadonlySet<string>> => {
    const { data } = await request("get", "/openapi.json", { signal });
    return operationsOf(data as { paths?: Record<string, Record<string, unknown>> });
  },
  staleTime: Infinity,
});

/** Returns the operations of a contract. */
export function operationsOf(contract: { paths?: Record<string, Record<string, unknown>> }): ReadonlySet<string> {
  return new Set(
    Object.entries(contract.paths ?? {}).flatMap(([path, item]) =>
      METHODS.filter((method) => method in item).map((method) => `${method.toUpperCase()} ${path}`),
    ),
  );
}
