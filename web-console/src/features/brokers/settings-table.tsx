import { Badge, Group, TextInput } from "@mantine/core";
import { useTranslation } from "react-i18next";
import type { Edits, Setting } from "@/models/broker-settings";
import { DataTable, type Column } from "@/ui/data-table";
import { Name, Value } from "@/ui/value";

/** Settings with their values; the ones that take effect at once are fields. */
export function SettingsTable({
  settings,
  edits,
  mayChange,
  onEdit,
}: {
  settings: Setting[];
  edits: Edits;
  mayChange: boolean;
  onEdit: (setting: Setting, value: string) => void;
}) {
  const { t } = useTranslation("brokers");
  const columns: Column<Setting>[] = [
    {
      key: "name",
      header: t("settings.name"),
      width: "minmax(19rem, 1.4fr)",
      cell: (row) => <Name>{row.name}</Name>,
      sortBy: (row) => row.name,
    },
    {
      key: "value",
      header: t("settings.value"),
      width: "minmax(12rem, 1.4fr)",
      cell: (row) =>
        mayChange && row.live === true ? (
          <TextInput
            size="xs"
            aria-label={row.name}
            autoComplete="off"
            value={edits[row.name]?.after ?? row.value}
            onChange={(event) => {
              onEdit(row, event.currentTarget.value);
            }}
          />
        ) : (
          <Name>{row.value || "–"}</Name>
        ),
    },
    {
      key: "default",
      header: t("settings.default"),
      cell: (row) => <Value>{row.default === null ? null : <Name>{row.default || "–"}</Name>}</Value>,
    },
    {
      key: "kind",
      header: t("settings.kind"),
      width: "11rem",
      cell: (row) => (
        <Group gap={4}>
          {row.live === true && (
            <Badge variant="light" color="gray" tt="none">
              {t("settings.live")}
            </Badge>
          )}
          {row.changed === true && (
            <Badge variant="light" color="cyan" tt="none" autoContrast>
              {t("settings.changed")}
            </Badge>
          )}
        </Group>
      ),
    },
  ];
  return <DataTable label={t("tab.settings")} rows={settings} columns={columns} rowKey={(row) => row.name} />;
}
