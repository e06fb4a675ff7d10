import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import type { BrokerSummary } from "@/models/cluster";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { PageFrame, QueryState } from "@/ui/page-frame";
import { Ago, Name, Value } from "@/ui/value";
import { BrokerState } from "./broker-state";
import { brokersQuery } from "./queries";

const MS = 1_000;

/** All brokers with their rates, disks and states. */
export function BrokersPage() {
  const { t } = useTranslation("brokers");
  const navigate = useNavigate();
  const query = useQuery(brokersQuery);
  return (
    <PageFrame
      title={t("title")}
      description={t("description")}
      actions={<CopyAs call={{ method: "GET", path: "/v1/cluster" }} gantry={gantryCommand("broker", "list")} />}
    >
      <QueryState query={query} isEmpty={(cluster) => cluster.brokers.length === 0} empty={t("none")}>
        {(cluster) => (
          <BrokerTable
            brokers={cluster.brokers}
            onOpen={(row) => void navigate({ to: "/brokers/$broker", params: { broker: row.name } })}
          />
        )}
      </QueryState>
    </PageFrame>
  );
}

function BrokerTable({ brokers, onOpen }: { brokers: BrokerSummary[]; onOpen: (row: BrokerSummary) => void }) {
  const { t } = useTranslation("brokers");
  const format = useFormat();
  const columns: Column<BrokerSummary>[] = [
    {
      key: "name",
      header: t("name"),
      width: "minmax(8rem, 1.2fr)",
      sortBy: (row) => row.key,
      cell: (row) => (
        <Link to="/brokers/$broker" params={{ broker: row.name }} className="row-link">
          <Name>{row.name}</Name>
        </Link>
      ),
    },
    { key: "role", header: t("role"), width: "5.5rem", cell: (row) => t(`roles.${row.role}`) },
    { key: "state", header: t("state.title"), width: "9.5rem", cell: (row) => <BrokerState broker={row} /> },
    number("in", t("in"), (row) => row.putRate, format.rate),
    number("out", t("out"), (row) => row.getRate, format.rate),
    number(
      "p99",
      t("p99"),
      (row) => row.putP99Ms,
      (ms) => format.duration(ms === null ? null : ms / MS),
    ),
    number("disk", t("disk"), (row) => row.diskShare, format.share),
    number("flush", t("flush"), (row) => row.flushBehindBytes, format.bytes),
    number("dispatch", t("dispatch"), (row) => row.dispatchBehindBytes, format.bytes),
    {
      key: "booted",
      header: t("booted"),
      width: "8.25rem",
      cell: (row) => <Ago time={row.bootedAt} />,
      sortBy: (row) => row.bootedAt,
    },
  ];
  return <DataTable label={t("title")} rows={brokers} columns={columns} rowKey={(row) => row.key} onOpen={onOpen} />;
}

function number(
  key: string,
  header: string,
  valueOf: (row: BrokerSummary) => number | null,
  format: (value: number | null) => string | null,
): Column<BrokerSummary> {
  return {
    key,
    header,
    width: "minmax(5.4rem, 0.8fr)",
    align: "end",
    sortBy: valueOf,
    cell: (row) => <Value reason={row.detail}>{format(valueOf(row))}</Value>,
  };
}
