import { Center } from "@mantine/core";
import { useQuery, useQueryClient, type Query } from "@tanstack/react-query";
import { useEffect, useState, type ReactNode } from "react";
import { isGatewayLost, onContactChange } from "@/api/contact";
import { operationsQuery } from "@/api/operations";
import { onSessionLost } from "@/api/request";
import { sessionQuery } from "@/api/session";
import { LogInAgain, LogInPage } from "./log-in";
import { useIsGatewayLost } from "./contact";
import { GatewayAway, Problem } from "./problem";

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
  const isLost = useIsGatewayLost();
  if (isIn && !wasIn) setWasIn(true);
  useEffect(
    () =>
      onContactChange(() => {
        // Some reads failed, and others still wait for an answer that may never come.
        const hasWaited = (query: Query) => query.state.error !== null || query.state.fetchStatus === "fetching";
        if (!isGatewayLost()) void client.refetchQueries({ type: "active", predicate: hasWaited });
      }),
    [client],
  );
  useEffect(
    () =>
      onSessionLost(() => {
        client.setQueryData(sessionQuery.queryKey, null);
      }),
    [client],
  );
  if (session.data === undefined) {
    if (session.error === null)
      return isLost ? (
        <Alone>
          <GatewayAway />
        </Alone>
      ) : null;
    return (
      <Alone>
        <Problem error={session.error} onRetry={() => void session.refetch()} />
      </Alone>
    );
  }
  if (isIn && !contract.isFetched)
    return isLost ? (
      <Alone>
        <GatewayAway />
      </Alone>
    ) : null;
  if (!wasIn) return isIn ? children : <LogInPage />;
  return (
    <>
      {children}
      {!isIn && <LogInAgain />}
    </>
  );
}

/** A state before there is any page. */
function Alone({ children }: { children: ReactNode }) {
  return (
    <Center component="main" mih="100dvh" p="md">
      {children}
    </Center>
  );
}
