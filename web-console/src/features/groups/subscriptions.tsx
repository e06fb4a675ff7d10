import { Alert, List, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import type { Schema } from "@/api/types";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { QueryState } from "@/ui/page-frame";
import { useOperations } from "@/ui/session";
import { Ago, Name, Value } from "@/ui/value";
import { consistencyQuery, subscriptionsQuery } from "./queries";

type Subscription = Schema<"Subscription">;
type Consistency = Schema<"GroupConsistency">;

/** What the members subscribe to, and whether they agree. */
export function Subscriptions({ group }: { group: string }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  const has = useOperations();
  const query = useQuery(subscriptionsQuery(group));
  const consistency = useQuery({
    ...consistencyQuery(group),
    enabled: has(["GET /v1/groups/{group}/consistency"]),
  });
  const columns: Column<Subscription>[] = [
    {
      key: "topic",
      header: t("topic"),
      width: "minmax(10rem, 1.5fr)",
      sortBy: (row) => row.topic,
      cell: (row) => (
        <Link to="/topics/$topic" params={{ topic: row.topic }} className="row-link">
          <Name>{row.topic}</Name>
        </Link>
      ),
    },
    {
      key: "filter",
      header: t("subscriptions.filter"),
      width: "minmax(10rem, 1.5fr)",
      cell: (row) => <Name>{`${row.filter_type} ${row.filter}`}</Name>,
    },
    { key: "model", header: t("clients.model"), cell: (row) => <Name>{row.message_model}</Name> },
    { key: "kind", header: t("clients.language"), width: "8rem", cell: (row) => <Name>{row.client_kind}</Name> },
    {
      key: "clients",
      header: t("clients.count"),
      align: "end",
      width: "7rem",
      sortBy: (row) => row.clients_count,
      cell: (row) => <Value>{format.count(row.clients_count)}</Value>,
    },
    {
      key: "active",
      header: t("subscriptions.active"),
      width: "8rem",
      cell: (row) => (row.active ? t("subscriptions.now") : <Ago time={row.last_seen_at} />),
    },
    { key: "verdict", header: t("subscriptions.agree"), cell: (row) => t(`subscriptions.${row.verdict}`) },
  ];
  return (
    <Stack gap="sm">
      {consistency.data !== undefined && <Agreement found={consistency.data} />}
      <QueryState query={query} isEmpty={(data) => data.items.length === 0} empty={t("subscriptions.none")}>
        {(data) => (
          <DataTable
            label={t("tab.subscriptions")}
            rows={data.items}
            columns={columns}
            rowKey={(row) => `${row.topic} ${row.filter_type} ${row.filter} ${row.message_model} ${row.client_kind}`}
          />
        )}
      </QueryState>
    </Stack>
  );
}

function Agreement({ found }: { found: Consistency }) {
  const { t } = useTranslation("groups");
  const state = found.consistent === null ? "unknown" : found.consistent ? "same" : "differ";
  const color = { unknown: "gray", same: "green", differ: "red" }[state];
  return (
    <Alert color={color} variant="light" title={t(`agreement.${state}`)} role="status">
      {found.missing.map((reason) => (
        <Text key={reason} size="sm" style={{ overflowWrap: "anywhere" }}>
          {reason}
        </Text>
      ))}
      {found.since !== null && (
        <Text size="sm">
          {t("agreement.since")} <Ago time={found.since} />
        </Text>
      )}
      {found.differences.map((difference) => (
        <div key={`${difference.kind} ${difference.topic ?? ""}`}>
          <Text size="sm" mt={6}>
            {t(`agreement.kind.${difference.kind}`)} {difference.topic !== null && <Name>{difference.topic}</Name>}
          </Text>
          <List size="sm" styles={{ item: { overflowWrap: "anywhere" } }}>
            {difference.sides.map((side) => (
              <List.Item key={side.value}>
                <Name>{side.value}</Name>: <Name>{side.clients.join(", ")}</Name>
                {side.clients_count > side.clients.length && ` +${side.clients_count - side.clients.length}`}
              </List.Item>
            ))}
          </List>
        </div>
      ))}
    </Alert>
  );
}
