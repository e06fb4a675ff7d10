import { useQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import type { Schema } from "@/api/types";
import { difference } from "@/models/numbers";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { QueryState } from "@/ui/page-frame";
import { Ago, Name, Value } from "@/ui/value";
import { queuesQuery } from "./queries";

type Queue = Schema<"Queue">;

/** The queues of a topic with their offsets; those of a broker that does not answer are unknown. */
export function Queues({ topic }: { topic: string }) {
  const { t } = useTranslation("topics");
  const format = useFormat();
  const query = useQuery(queuesQuery(topic));
  const allowed = (is: boolean | null) => <Value>{is === null ? null : is ? t("yes") : t("no")}</Value>;
  const columns: Column<Queue>[] = [
    {
      key: "queue",
      header: t("queues.queue"),
      width: "minmax(9rem, 1.2fr)",
      sortBy: (row) => `${row.broker}/${row.queue_id}`,
      cell: (row) => <Name>{`${row.broker} / ${row.queue_id}`}</Name>,
    },
    {
      key: "min",
      header: t("queues.min"),
      align: "end",
      sortBy: (row) => toBig(row.min_offset),
      cell: (row) => <Value>{format.count(row.min_offset)}</Value>,
    },
    {
      key: "max",
      header: t("queues.max"),
      align: "end",
      sortBy: (row) => toBig(row.max_offset),
      cell: (row) => <Value>{format.count(row.max_offset)}</Value>,
    },
    {
      key: "messages",
      header: t("queues.messages"),
      align: "end",
      sortBy: (row) => difference(row.min_offset, row.max_offset),
      cell: (row) => <Value>{format.count(difference(row.min_offset, row.max_offset))}</Value>,
    },
    { key: "read", header: t("queues.read"), width: "6rem", cell: (row) => allowed(row.read) },
    { key: "write", header: t("queues.write"), width: "6rem", cell: (row) => allowed(row.write) },
    {
      key: "last",
      header: t("queues.last"),
      width: "9rem",
      sortBy: (row) => row.last_stored_at,
      cell: (row) => (row.last_stored_at === null ? lastOf(row, t("queues.never")) : <Ago time={row.last_stored_at} />),
    },
  ];
  return (
    <QueryState query={query} isEmpty={(rows) => rows.length === 0} empty={t("queues.none")}>
      {(rows) => (
        <DataTable
          label={t("tab.queues")}
          rows={rows}
          columns={columns}
          rowKey={(row) => `${row.broker}/${row.queue_id}`}
        />
      )}
    </QueryState>
  );
}

const toBig = (offset: string | null) => (offset === null ? null : BigInt(offset));

/** An empty queue has no last message; of a queue whose offsets are unknown, the last message is unknown, too. */
function lastOf(row: Queue, never: string) {
  return row.max_offset === "0" ? never : <Value>{null}</Value>;
}
