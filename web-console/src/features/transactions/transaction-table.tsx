import { useTranslation } from "react-i18next";
import { secondsUntil } from "@/models/numbers";
import type { Transaction } from "@/models/transactions";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { useNow } from "@/ui/now";
import { Ago, Name, When } from "@/ui/value";
import { StateBadge } from "./state-badge";

/** Transactions, newest first. */
export function TransactionTable({
  transactions,
  onOpen,
}: {
  transactions: readonly Transaction[];
  onOpen: (transaction: Transaction) => void;
}) {
  const { t } = useTranslation("transactions");
  const format = useFormat();
  const columns: Column<Transaction>[] = [
    {
      key: "transaction",
      header: t("transaction"),
      width: "minmax(12rem, 1.4fr)",
      cell: (row) => (
        <button
          type="button"
          className="row-link cell-button"
          onClick={() => {
            onOpen(row);
          }}
        >
          <Name>{row.transaction}</Name>
        </button>
      ),
    },
    {
      key: "state",
      header: t("state"),
      width: "7.5rem",
      cell: (row) => <StateBadge transaction={row} />,
      sortBy: (row) => row.state,
    },
    {
      key: "group",
      header: t("group"),
      width: "minmax(9rem, 1fr)",
      cell: (row) => <Name>{row.group}</Name>,
      sortBy: (row) => row.group,
    },
    {
      key: "topic",
      header: t("topic"),
      width: "minmax(7rem, 1fr)",
      cell: (row) => <Name>{row.topic}</Name>,
      sortBy: (row) => row.topic,
    },
    {
      key: "begun",
      header: t("begun"),
      width: "7.5rem",
      cell: (row) => <Ago time={row.created_at} />,
      sortBy: (row) => row.created_at,
    },
    {
      key: "checks",
      header: t("checks"),
      width: "5rem",
      align: "end",
      cell: (row) => format.count(row.checks),
      sortBy: (row) => row.checks,
    },
    {
      key: "next",
      header: t("nextCheck"),
      width: "7.5rem",
      cell: (row) => <NextCheck transaction={row} />,
      sortBy: (row) => row.next_check_at,
    },
    {
      key: "decided",
      header: t("decided"),
      width: "7.5rem",
      cell: (row) => <DecidedAgo transaction={row} />,
      sortBy: (row) => row.decided_at,
    },
  ];
  return (
    <DataTable
      label={t("title")}
      rows={transactions}
      columns={columns}
      rowKey={(row) => row.transaction}
      onOpen={onOpen}
    />
  );
}

/** When the broker asks next, at the earliest; one whose time is past is due. */
function NextCheck({ transaction }: { transaction: Transaction }) {
  const { t } = useTranslation("transactions");
  const left = secondsUntil(transaction.next_check_at, useNow());
  if (transaction.state !== "open") return <>{t("none")}</>;
  return left !== null && left <= 0 ? <>{t("due")}</> : <When time={transaction.next_check_at} />;
}

/** When it was decided. The time of a decision that a client gave to its broker is unknown. */
function DecidedAgo({ transaction }: { transaction: Transaction }) {
  const { t } = useTranslation("transactions");
  const isDecided = transaction.state === "committed" || transaction.state === "rolled_back";
  return isDecided ? <Ago time={transaction.decided_at} /> : <>{t("none")}</>;
}
