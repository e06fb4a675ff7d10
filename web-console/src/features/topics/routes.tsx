import { useTranslation } from "react-i18next";
import type { Topic } from "@/api/topics";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { Empty } from "@/ui/page-frame";
import { Name } from "@/ui/value";

const MS = 1_000;

type Route = Topic["observed"][number];

/** Where the topic is: the settings that each broker has at the moment. */
export function Routes({ topic }: { topic: Topic }) {
  const { t } = useTranslation("topics");
  const format = useFormat();
  const columns: Column<Route>[] = [
    {
      key: "broker",
      header: t("routes.broker"),
      sortBy: (row) => row.broker,
      cell: (row) => <Name>{row.broker}</Name>,
    },
    { key: "read", header: t("setting.read_queues"), align: "end", cell: (row) => format.count(row.read_queues) },
    { key: "write", header: t("setting.write_queues"), align: "end", cell: (row) => format.count(row.write_queues) },
    { key: "perm", header: t("setting.perm"), cell: (row) => t(`perm.${row.perm}`, { defaultValue: row.perm }) },
    { key: "order", header: t("setting.order"), cell: (row) => (row.order ? t("yes") : t("no")) },
    {
      key: "window",
      header: t("setting.duplicate_window"),
      cell: (row) => (row.duplicate_window_ms === 0 ? t("noWindow") : format.duration(row.duplicate_window_ms / MS)),
    },
  ];
  if (topic.observed.length === 0) return <Empty>{t("routes.none")}</Empty>;
  return <DataTable label={t("tab.routes")} rows={topic.observed} columns={columns} rowKey={(row) => row.broker} />;
}
