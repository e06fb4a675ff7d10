import { useQuery } from "@tanstack/react-query";
import { operationsQuery, type OperationName } from "@/api/operations";
import { sessionQuery, type Caller } from "@/api/session";
import { isAllowed, type Role } from "@/models/roles";

/** The caller; null before the log-in. */
export function useCaller(): Caller | null {
  return useQuery(sessionQuery).data ?? null;
}

/** Whether the caller has at least this role. */
export function useRole(needed: Role): boolean {
  return isAllowed(useCaller()?.role ?? null, needed);
}

/** A function that tells whether the gateway has all of some operations. False until the contract is known. */
export function useOperations(): (needed: readonly OperationName[]) => boolean {
  const { data } = useQuery(operationsQuery);
  return (needed) => data !== undefined && needed.every((name) => data.has(name));
}
