import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { useTranslation } from "react-i18next";
import type { Schema } from "@/api/types";
import type { LagRow } from "@/models/lag";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { QueryState } from "@/ui/page-frame";
import { useOperations } from "@/ui/session";
import { Name, Value } from "@/ui/value";
import { useVerdictText } from "@/ui/verdict-text";
import { groupLagQuery, offsetsQuery } from "./queries";

type Offset = Schema<"GroupOffset">;

const toBig = (offset: string | null) => (offset === null ? null : BigInt(offset));
const keyOf = (row: { topic: string; broker: string | null; queue_id: number | null }) =>
  `${row.topic}/${row.broker ?? ""}/${row.queue_id ?? ""}`;

/** The offsets of the group in every queue, as the brokers have them now, and the owners of the latest report. */
export function Offsets({ group }: { group: string }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  const textOf = useVerdictText();
  const has = useOperations();
  const query = useQuery(offsetsQuery(group));
  const lag = useQuery({ ...groupLagQuery(group), enabled: has(["GET /v1/reports/lag_report/rows"]) });
  const reported = useMemo(() => new Map(lag.data?.queues.map((row) => [keyOf(row), row])), [lag.data]);
  const columns: Column<Offset>[] = [
    {
      key: "queue",
      header: t("offsets.queue"),
      width: "minmax(9rem, 1.2fr)",
      sortBy: (row) => `${row.broker}/${row.queue_id}`,
      cell: (row) => <Name>{`${row.broker} / ${row.queue_id}`}</Name>,
    },
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
      key: "committed",
      header: t("offsets.committed"),
      align: "end",
      sortBy: (row) => toBig(row.committed_offset),
      cell: (row) => <Value>{format.count(row.committed_offset)}</Value>,
    },
    {
      key: "max",
      header: t("offsets.max"),
      align: "end",
      sortBy: (row) => toBig(row.max_offset),
      cell: (row) => <Value>{format.count(row.max_offset)}</Value>,
    },
    {
      key: "lag",
      header: t("lag.messages"),
      align: "end",
      sortBy: (row) => toBig(row.lag),
      cell: (row) => <Value>{format.count(row.lag)}</Value>,
    },
    {
      key: "seconds",
      header: t("lag.seconds"),
      align: "end",
      sortBy: (row) => reported.get(keyOf(row))?.lag_seconds ?? null,
      cell: (row) => {
        const found = reported.get(keyOf(row));
        return (
          <Value reason={found === undefined ? t("notInReport") : textOf(found.cause)}>
            {format.duration(found?.lag_seconds)}
          </Value>
        );
      },
    },
    {
      key: "owners",
      header: t("offsets.owners"),
      width: "minmax(12rem, 1.5fr)",
      cell: (row) => <Owners row={reported.get(keyOf(row))} />,
    },
  ];
  const shown = has(["GET /v1/reports/lag_report/rows"])
    ? columns
    : columns.filter((column) => column.key !== "seconds" && column.key !== "owners");
  return (
    <QueryState query={query} isEmpty={(rows) => rows.length === 0} empty={t("offsets.none")}>
      {(rows) => <DataTable label={t("tab.offsets")} rows={rows} columns={shown} rowKey={keyOf} />}
    </QueryState>
  );
}

/** Brokers are asked for owners only when a queue is behind, so a queue that is not has no owners in the report. */
function Owners({ row }: { row: LagRow | undefined }) {
  const { t } = useTranslation("groups");
  if (row === undefined) return <Value reason={t("notInReport")}>{null}</Value>;
  if (row.owners === null)
    return <Value reason={t(row.verdict === "OK" ? "offsets.notAsked" : "offsets.noOwners")}>{null}</Value>;
  if (row.owners.length === 0) return <>{t("offsets.nobody")}</>;
  return <Name>{row.owners.map((owner) => owner.client_id).join(", ")}</Name>;
}
