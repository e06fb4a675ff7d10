import { useTranslation } from "react-i18next";
import type { Waiting } from "@/models/scheduled";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { Ago, Name, When } from "@/ui/value";

const PREVIEW_CHARACTERS = 80;

/** What waits, by due time. */
export function WaitingTable({ waiting, onOpen }: { waiting: readonly Waiting[]; onOpen: (message: Waiting) => void }) {
  const { t } = useTranslation("scheduled");
  const format = useFormat();
  const columns: Column<Waiting>[] = [
    {
      key: "id",
      header: t("id"),
      width: "minmax(12rem, 1.4fr)",
      cell: (row) => (
        <button
          type="button"
          className="row-link cell-button"
          onClick={() => {
            onOpen(row);
          }}
        >
          <Name>{row.message_id}</Name>
        </button>
      ),
    },
    {
      key: "due",
      header: t("due"),
      width: "9rem",
      cell: (row) => <When time={row.deliver_at} />,
      sortBy: (row) => row.deliver_at,
    },
    { key: "dueAt", header: t("dueAt"), width: "14rem", cell: (row) => format.time(row.deliver_at) },
    {
      key: "stored",
      header: t("stored"),
      width: "7rem",
      cell: (row) => <Ago time={row.stored_at} />,
      sortBy: (row) => row.stored_at,
    },
    { key: "keys", header: t("keys"), width: "minmax(7rem, 1fr)", cell: (row) => <Name>{row.keys.join(", ")}</Name> },
    { key: "tag", header: t("tag"), width: "5rem", cell: (row) => <Name>{row.tag ?? ""}</Name> },
    {
      key: "body",
      header: t("body"),
      width: "minmax(9rem, 2fr)",
      cell: (row) => <Name>{row.encoding === "base64" ? t("binary") : row.body.slice(0, PREVIEW_CHARACTERS)}</Name>,
    },
  ];
  return <DataTable label={t("title")} rows={waiting} columns={columns} rowKey={(row) => row.handle} onOpen={onOpen} />;
}
