import { Alert, Button, Stack, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { IconArrowBackUp } from "@tabler/icons-react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { groupKeys, undoReset, type OffsetReset } from "@/api/groups";
import type { Schema } from "@/api/types";
import { gantryCommand, type Call } from "@/models/commands";
import { movedBy } from "@/models/groups";
import { useConfirm } from "@/ui/confirm";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { useFailureNotice } from "@/ui/problem";
import { Name, Value } from "@/ui/value";

const ICON_PX = 16;

type Item = OffsetReset["items"][number];

/** What a reset or clone would do, or has done: the number of messages, and each queue with its first and last message. */
export function MovedOffsets({ moved, isPreview }: { moved: OffsetReset; isPreview: boolean }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  const sum = movedBy(moved.items);
  const topics = new Set(moved.items.map((item) => item.topic));
  const columns: Column<Item>[] = [
    {
      key: "queue",
      header: t("offsets.queue"),
      width: "minmax(9rem, 1fr)",
      cell: (row) => <Name>{`${topics.size > 1 ? `${row.topic} · ` : ""}${row.broker} / ${row.queue_id}`}</Name>,
    },
    {
      key: "from",
      header: t("moved.from"),
      align: "end",
      width: "7rem",
      cell: (row) => (row.from === null ? t("moved.noOffset") : format.count(row.from)),
    },
    {
      key: "to",
      header: t("moved.to"),
      align: "end",
      width: "7rem",
      cell: (row) => (row.to === null ? t("moved.noOffset") : format.count(row.to)),
    },
    {
      key: "messages",
      header: t("moved.messages"),
      align: "end",
      width: "7rem",
      cell: (row) => <Value reason={row.note}>{format.count(row.messages)}</Value>,
    },
    {
      key: "first",
      header: t("moved.first"),
      width: "minmax(10rem, 1fr)",
      cell: (row) => <Edge message={row.first} />,
    },
    { key: "last", header: t("moved.last"), width: "minmax(10rem, 1fr)", cell: (row) => <Edge message={row.last} /> },
    {
      key: "outcome",
      header: t("moved.outcome.title"),
      width: "minmax(9rem, 1fr)",
      cell: (row) => (
        <span>
          {t(`moved.outcome.${row.outcome}`)}
          {(row.problem ?? row.note) && (
            <Text size="xs" c="dimmed" style={{ overflowWrap: "anywhere" }}>
              {row.problem?.detail ?? row.note}
            </Text>
          )}
        </span>
      ),
    },
  ];
  const tense = isPreview ? "will" : "did";
  return (
    <Stack gap="xs">
      <Alert color={sum.failed > 0 ? "red" : isPreview ? "blue" : "green"} variant="light" p="xs" role="status">
        {sum.again > 0n && (
          <Text size="sm" fw={600}>
            {t(`moved.${tense}.again`, { count: Number(sum.again), shown: format.count(sum.again) })}
          </Text>
        )}
        {sum.skipped > 0n && (
          <Text size="sm" fw={600}>
            {t(`moved.${tense}.skipped`, { count: Number(sum.skipped), shown: format.count(sum.skipped) })}
          </Text>
        )}
        {sum.again === 0n && sum.skipped === 0n && sum.unknown === 0 && sum.failed === 0 && (
          <Text size="sm">{t("moved.nothing")}</Text>
        )}
        {sum.unknown > 0 && <Text size="sm">{t("moved.unknown", { count: sum.unknown })}</Text>}
        {sum.failed > 0 && <Text size="sm">{t("moved.failed", { count: sum.failed })}</Text>}
        {moved.truncated && <Text size="sm">{t("moved.truncated")}</Text>}
      </Alert>
      {moved.items.length > 0 && (
        <DataTable
          label={t("moved.queues")}
          rows={moved.items}
          columns={columns}
          rowKey={(row) => `${row.topic}/${row.broker}/${row.queue_id}`}
        />
      )}
    </Stack>
  );
}

/** A message at one end of what moves: when it was stored, and its key or id. */
function Edge({ message }: { message: Schema<"StoredMessage"> | null }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  if (message === null) return <>{t("moved.noMessage")}</>;
  return (
    <span>
      {format.time(message.stored_at)}
      <Text size="xs" c="dimmed">
        <Name>{message.keys[0] ?? message.message_id}</Name>
      </Text>
    </span>
  );
}

/** Brings back the offsets from before the last reset or clone of this page. */
export function Undo({ group, token, onDone }: { group: string; token: string; onDone: (moved: OffsetReset) => void }) {
  const { t } = useTranslation("groups");
  const confirm = useConfirm();
  const client = useQueryClient();
  const noteFailure = useFailureNotice();
  const undo = useMutation({
    mutationFn: () => undoReset(group, token),
    onSuccess: async (moved) => {
      const { failed } = movedBy(moved.items);
      notifications.show(
        failed > 0
          ? { message: t("moved.failed", { count: failed }), color: "red", autoClose: false }
          : { message: t("undo.done"), color: "green" },
      );
      onDone(moved);
      await client.invalidateQueries({ queryKey: groupKeys.detail(group) });
    },
    onError: (error) => {
      noteFailure(t("undo.failed"), error);
    },
  });
  const ask = async () => {
    const effects = [t("undo.effect", { name: group }), t("undo.consumed")];
    const question = { title: t("undo.title"), effects, action: t("undo.submit"), isDangerous: true };
    const path = "/v1/groups/{group}/offsets:undo";
    const call: Call = { method: "POST", path, values: { group }, body: { undo: token } };
    const copy = { call, gantry: gantryCommand("offset", "undo", group, token) };
    if (await confirm({ ...question, copy })) undo.mutate();
  };
  return (
    <Button
      size="xs"
      variant="default"
      leftSection={<IconArrowBackUp size={ICON_PX} />}
      loading={undo.isPending}
      onClick={() => void ask()}
    >
      {t("undo.open")}
    </Button>
  );
}
