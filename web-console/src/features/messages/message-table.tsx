import { Button, Text } from "@mantine/core";
import { useMemo } from "react";
import { useTranslation } from "react-i18next";
import type { Message } from "@/api/messages";
import { beginOf } from "@/models/bodies";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { Name } from "@/ui/value";

const PREVIEW_CHARACTERS = 80;
const KEY_CHARACTERS = 200;

/** Messages with the begin of their bodies; one opens with a click or Enter. */
export function MessageTable({ rows, onOpen }: { rows: readonly Message[]; onOpen: (message: Message) => void }) {
  const { t } = useTranslation("messages");
  const format = useFormat();
  const columns = useMemo(
    (): Column<Message>[] => [
      {
        key: "stored",
        header: t("stored"),
        width: "14rem",
        sortBy: (row) => row.stored_at,
        cell: (row) => (
          <Button
            variant="transparent"
            size="compact-sm"
            px={0}
            color="gray"
            fw={400}
            c="inherit"
            onClick={() => {
              onOpen(row);
            }}
          >
            {format.time(row.stored_at)}
          </Button>
        ),
      },
      {
        key: "keys",
        header: t("keys"),
        width: "minmax(8rem, 1fr)",
        cell: (row) => <Name>{beginOf(row.keys.join(", "), KEY_CHARACTERS)}</Name>,
      },
      { key: "tag", header: t("tag"), width: "7rem", cell: (row) => <Name>{row.tag ?? ""}</Name> },
      {
        key: "place",
        header: t("place"),
        width: "minmax(10rem, 1fr)",
        cell: (row) => <Name>{`${row.broker} / ${row.queue_id} @ ${row.queue_offset}`}</Name>,
      },
      {
        key: "size",
        header: t("size"),
        width: "6rem",
        align: "end",
        sortBy: (row) => row.size,
        cell: (row) => format.bytes(row.size),
      },
      {
        key: "body",
        header: t("body"),
        width: "minmax(14rem, 2fr)",
        cell: (row) => (
          <Text span size="xs" ff="monospace" c="dimmed">
            <Name>{row.encoding === "base64" ? t("binary") : beginOf(row.body, PREVIEW_CHARACTERS)}</Name>
          </Text>
        ),
      },
    ],
    [t, format, onOpen],
  );
  return <DataTable label={t("title")} rows={rows} columns={columns} rowKey={(row) => row.stored_id} onOpen={onOpen} />;
}
