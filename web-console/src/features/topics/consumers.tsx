import { Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import type { LagRow } from "@/models/lag";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { QueryState } from "@/ui/page-frame";
import { Ago, Name, Value } from "@/ui/value";
import { Verdict } from "@/ui/verdict";
import { useVerdictText } from "@/ui/verdict-text";
import { consumersQuery } from "./queries";

/** The groups that consume the topic, by the latest lag report. */
export function Consumers({ topic }: { topic: string }) {
  const { t } = useTranslation("topics");
  const format = useFormat();
  const textOf = useVerdictText();
  const query = useQuery(consumersQuery(topic));
  const columns: Column<LagRow>[] = [
    {
      key: "group",
      header: t("consumers.group"),
      sortBy: (row) => row.group,
      cell: (row) => (
        <Link to="/groups/$group" params={{ group: row.group }} className="row-link">
          <Name>{row.group}</Name>
        </Link>
      ),
    },
    {
      key: "verdict",
      header: t("consumers.verdict"),
      width: "10rem",
      cell: (row) => <Verdict verdict={row.verdict} />,
    },
    {
      key: "messages",
      header: t("consumers.messages"),
      align: "end",
      sortBy: (row) => row.lag_messages,
      cell: (row) => <Value reason={textOf(row.cause)}>{format.count(row.lag_messages)}</Value>,
    },
    {
      key: "seconds",
      header: t("consumers.seconds"),
      align: "end",
      sortBy: (row) => row.lag_seconds,
      cell: (row) => <Value reason={textOf(row.cause)}>{format.duration(row.lag_seconds)}</Value>,
    },
    {
      key: "clients",
      header: t("consumers.clients"),
      align: "end",
      sortBy: (row) => row.clients,
      cell: (row) => <Value>{format.count(row.clients)}</Value>,
    },
  ];
  return (
    <QueryState
      query={query}
      isEmpty={(data) => data === null || data.rows.length === 0}
      empty={query.data === null ? t("consumers.noReport") : t("consumers.none")}
    >
      {(data) => (
        <Stack gap="xs">
          <Text size="xs" c="dimmed">
            {t("consumers.asOf")} <Ago time={data?.asOf} />
          </Text>
          <DataTable label={t("tab.consumers")} rows={data?.rows ?? []} columns={columns} rowKey={(row) => row.group} />
        </Stack>
      )}
    </QueryState>
  );
}
