import { useQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import type { Schema } from "@/api/types";
import { DataTable, type Column } from "@/ui/data-table";
import { QueryState } from "@/ui/page-frame";
import { Name } from "@/ui/value";
import { clientsQuery } from "./queries";

type Client = Schema<"GroupClient">;

/** The consumer instances of the group that are connected now. */
export function Clients({ group }: { group: string }) {
  const { t } = useTranslation("groups");
  const query = useQuery(clientsQuery(group));
  const columns: Column<Client>[] = [
    {
      key: "client",
      header: t("clients.client"),
      width: "minmax(14rem, 2fr)",
      sortBy: (row) => row.client_id,
      cell: (row) => <Name>{row.client_id}</Name>,
    },
    {
      key: "address",
      header: t("clients.address"),
      sortBy: (row) => row.address,
      cell: (row) => <Name>{row.address}</Name>,
    },
    {
      key: "language",
      header: t("clients.language"),
      sortBy: (row) => row.language,
      cell: (row) => <Name>{`${row.language} ${row.version}`.trim()}</Name>,
    },
    { key: "model", header: t("clients.model"), cell: (row) => <Name>{row.message_model}</Name> },
    { key: "type", header: t("clients.type"), cell: (row) => <Name>{row.consume_type}</Name> },
    { key: "from", header: t("clients.from"), cell: (row) => <Name>{row.from_where}</Name> },
    { key: "brokers", header: t("clients.brokers"), cell: (row) => <Name>{row.brokers.join(", ")}</Name> },
  ];
  return (
    <QueryState query={query} isEmpty={(rows) => rows.length === 0} empty={t("clients.none")}>
      {(rows) => <DataTable label={t("tab.clients")} rows={rows} columns={columns} rowKey={(row) => row.client_id} />}
    </QueryState>
  );
}
