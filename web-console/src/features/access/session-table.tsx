import { Badge, Button, Group, Stack, Tooltip } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { endSession, endSessions, userKeys, type Session } from "@/api/users";
import { browserOf } from "@/models/access";
import { gantryCommand } from "@/models/commands";
import { DataTable, type Column } from "@/ui/data-table";
import { QueryState } from "@/ui/page-frame";
import { useCaller, useOperations } from "@/ui/session";
import { Ago, Name, Value, When } from "@/ui/value";
import { AccessProblem } from "./access-problem";
import { sessionsQuery } from "./queries";
import { useAction } from "./use-action";

const AGENT_PX = 420;

/** Where a user is logged in, newest first; one session or all of them can be ended. */
export function SessionTable({ user }: { user: string }) {
  const { t } = useTranslation("access");
  const has = useOperations();
  const query = useQuery(sessionsQuery(user));
  const isSelf = useCaller()?.user === user;
  const { act, isPending, error } = useAction(userKeys.all);
  const endOne = (session: Session) =>
    act({
      confirmation: {
        title: t("sessions.end.title"),
        effects: [
          t("sessions.end.effect", { name: user, browser: browserText(session) ?? t("common:unknown") }),
          session.current ? t("sessions.current.one") : t("sessions.delay"),
        ],
        action: t("sessions.end.submit"),
        isDangerous: true,
        copy: {
          call: {
            method: "DELETE",
            path: "/v1/users/{user}/sessions/{session}",
            values: { user, session: session.session },
          },
          gantry: gantryCommand("user", "sessions", user, "--end-one", session.session),
        },
      },
      run: () => endSession(user, session.session),
      done: t("sessions.end.done"),
    });
  const endAll = (count: number) =>
    act({
      confirmation: {
        title: t("sessions.endAll.title", { name: user }),
        effects: [
          t("sessions.endAll.effect", { name: user, count }),
          isSelf ? t("sessions.current.effect") : t("sessions.delay"),
        ],
        action: t("sessions.endAll.submit"),
        isDangerous: true,
        copy: {
          call: { method: "DELETE", path: "/v1/users/{user}/sessions", values: { user } },
          gantry: gantryCommand("user", "sessions", user, "--end"),
        },
      },
      run: () => endSessions(user),
      done: t("sessions.endAll.done", { name: user }),
    });
  const mayEndOne = has(["DELETE /v1/users/{user}/sessions/{session}"]);
  const columns = useColumns(mayEndOne ? (session) => void endOne(session) : null, isPending);
  return (
    <QueryState query={query} isEmpty={(rows) => rows.length === 0} empty={t("sessions.none", { name: user })}>
      {(rows) => (
        <Stack gap="xs">
          {error !== null && <AccessProblem error={error} />}
          <DataTable
            label={t("sessions.of", { name: user })}
            rows={rows}
            columns={columns}
            rowKey={(row) => row.session}
          />
          {has(["DELETE /v1/users/{user}/sessions"]) && (
            <Group justify="flex-end">
              <Button size="xs" variant="default" disabled={isPending} onClick={() => void endAll(rows.length)}>
                {t("sessions.endAll.open")}
              </Button>
            </Group>
          )}
        </Stack>
      )}
    </QueryState>
  );
}

function browserText(session: Session): string | null {
  return session.user_agent === null ? null : browserOf(session.user_agent);
}

function useColumns(onEnd: ((session: Session) => void) | null, isPending: boolean): Column<Session>[] {
  const { t } = useTranslation("access");
  const end: Column<Session> = {
    key: "end",
    header: t("sessions.action"),
    width: "5rem",
    cell: (session) => (
      <Button
        size="compact-xs"
        variant="default"
        disabled={isPending}
        aria-label={t("sessions.end.of", { session: session.session })}
        onClick={() => onEnd?.(session)}
      >
        {t("sessions.end.open")}
      </Button>
    ),
  };
  return [
    {
      key: "browser",
      header: t("sessions.browser"),
      width: "minmax(8.25rem, 2fr)",
      cell: (session) => (
        <>
          {session.user_agent === null ? (
            <Value>{null}</Value>
          ) : (
            <Tooltip label={session.user_agent} multiline maw={AGENT_PX}>
              <span>
                <Name>{browserOf(session.user_agent)}</Name>
              </span>
            </Tooltip>
          )}{" "}
          {session.current && (
            <Badge variant="light" color="gray" tt="none" radius="sm">
              {t("sessions.current.badge")}
            </Badge>
          )}
        </>
      ),
    },
    {
      key: "address",
      header: t("sessions.address"),
      width: "minmax(7rem, 1fr)",
      cell: (session) => (session.address === null ? <Value>{null}</Value> : <Name>{session.address}</Name>),
    },
    {
      key: "begun",
      header: t("sessions.begun"),
      width: "8.5rem",
      cell: (session) => <Ago time={session.created_at} />,
    },
    {
      key: "used",
      header: t("sessions.used"),
      width: "8.5rem",
      cell: (session) => <Ago time={session.last_seen_at} />,
    },
    {
      key: "ends",
      header: t("sessions.ends"),
      width: "8.75rem",
      cell: (session) => <When time={session.expires_at} />,
    },
    ...(onEnd === null ? [] : [end]),
  ];
}
