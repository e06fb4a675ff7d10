import { Center } from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState, type ReactNode } from "react";
import { operationsQuery } from "@/api/operations";
import { onSessionLost } from "@/api/request";
import { sessionQuery } from "@/api/session";
import { LogInAgain, LogInPage } from "./log-in";
import { Problem } from "./problem";

/**
 * Shows the console to those who are logged in, and a dialog over it when their session ends. It waits for the contract:
 * pages that are drawn before it show what they have without any operation, and draw all of it again.
 */
export function SessionGate({ children }: { children: ReactNode }) {
  const client = useQueryClient();
  const session = useQuery(sessionQuery);
  const [wasIn, setWasIn] = useState(false);
  const isIn = session.data !== undefined && session.data !== null;
  const contract = useQuery({ ...operationsQuery, enabled: isIn });
  if (isIn && !wasIn) setWasIn(true);
  useEffect(
    () =>
      onSessionLost(() => {
        client.setQueryData(sessionQuery.queryKey, null);
      }),
    [client],
  );
  if (session.data === undefined) {
    if (session.error === null) return null;
    return (
      <Center component="main" mih="100dvh" p="md">
        <Problem error={session.error} onRetry={() => void session.refetch()} />
      </Center>
    );
  }
  if (isIn && !contract.isFetched) return null;
  if (!wasIn) return isIn ? children : <LogInPage />;
  return (
    <>
      {children}
      {!isIn && <LogInAgain />}
    </>
  );
}
