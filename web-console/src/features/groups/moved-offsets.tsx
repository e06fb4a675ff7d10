import { Alert, Button, Stack, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { IconArrowBackUp, IconArrowForwardUp } from "@tabler/icons-react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { useTranslation } from "react-i18next";
import { groupKeys, undoReset, type OffsetReset } from "@/api/groups";
import type { Schema } from "@/api/types";
import { gantryCommand, type Call } from "@/models/commands";
import { isFailed, movedBy } from "@/models/groups";
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
      header: isPreview ? t("moved.from") : t("moved.before"),
      align: "end",
      width: "7rem",
      cell: (row) => <Place offset={row.from} item={row} />,
    },
    {
      key: "to",
      header: isPreview ? t("moved.to") : t("moved.after"),
      align: "end",
      width: "7rem",
      // A queue that did not move is where it was.
      cell: (row) => <Place offset={row.outcome === "not_reset" ? row.from : row.to} item={row} />,
    },
    {
      key: "messages",
      header: t("moved.messages"),
      align: "end",
      width: "7.5rem",
      cell: (row) => <Messages item={row} />,
    },
    {
      key: "first",
      header: t("moved.first"),
      width: "minmax(10rem, 1fr)",
      cell: (row) => <Edge message={row.first} item={row} />,
    },
    {
      key: "last",
      header: t("moved.last"),
      width: "minmax(10rem, 1fr)",
      cell: (row) => <Edge message={row.last} item={row} />,
    },
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
  const outcome = useRef<HTMLDivElement>(null);
  // The button that had the focus is gone with the preview.
  useEffect(() => {
    if (!isPreview) outcome.current?.focus();
  }, [isPreview]);
  return (
    <Stack gap="xs">
      <Alert
        ref={outcome}
        tabIndex={-1}
        color={sum.failed > 0 ? "red" : isPreview ? "blue" : "green"}
        variant="light"
        p="xs"
        role="status"
      >
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
        {sum.failed > 0 && <Text size="sm">{t(`moved.${tense}.failed`, { count: sum.failed })}</Text>}
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

/** A committed offset. None is known only from a broker that answered: a queue that did not move tells nothing. */
function Place({ offset, item }: { offset: string | null; item: Item }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  if (offset === null && !isFailed(item)) return <>{t("moved.noOffset")}</>;
  return <Value reason={item.problem?.detail ?? item.note}>{format.count(offset)}</Value>;
}

/** How many messages are repeated or skipped, in words: a sign could be taken for an error. */
function Messages({ item }: { item: Item }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  const { messages } = item;
  if (messages === null || messages === "0") return <Value reason={item.note}>{format.count(messages)}</Value>;
  const isSkipped = messages.startsWith("-");
  const shown = format.count(isSkipped ? messages.slice(1) : messages);
  return <>{isSkipped ? t("moved.skippedIn", { shown }) : t("moved.againIn", { shown })}</>;
}

/** A message at one end of what moves: when it was stored, and its key or id. */
function Edge({ message, item }: { message: Schema<"StoredMessage"> | null; item: Item }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  if (message === null) {
    // Otherwise there is one, and it was not read.
    const isNone = !isFailed(item) && (item.messages === "0" || item.from === null || item.to === null);
    return isNone ? <>{t("moved.noMessage")}</> : <Value reason={item.problem?.detail ?? item.note}>{null}</Value>;
  }
  return (
    <span>
      {format.time(message.stored_at)}
      <Text size="xs" c="dimmed">
        <Name>{message.keys[0] ?? message.message_id}</Name>
      </Text>
    </span>
  );
}

/** Brings back the offsets from before the last reset or clone. After that, brings back those of the reset. */
export function Undo({
  group,
  token,
  isUndone,
  onDone,
}: {
  group: string;
  token: string;
  isUndone: boolean;
  onDone: (moved: OffsetReset) => void;
}) {
  const { t } = useTranslation("groups");
  const confirm = useConfirm();
  const client = useQueryClient();
  const noteFailure = useFailureNotice();
  const verb = isUndone ? "redo" : "undo";
  const undo = useMutation({
    mutationFn: () => undoReset(group, token),
    onSuccess: async (moved) => {
      const { failed } = movedBy(moved.items);
      notifications.show(
        failed > 0
          ? { message: t("moved.did.failed", { count: failed }), color: "red", autoClose: false }
          : { message: t(`${verb}.done`), color: "green" },
      );
      // What did not move can be undone later with the same token.
      if (failed === 0) onDone(moved);
      await client.invalidateQueries({ queryKey: groupKeys.detail(group) });
    },
    onError: (error) => {
      noteFailure(t(`${verb}.failed`), error);
    },
  });
  const ask = async () => {
    const effects = [t(`${verb}.effect`, { name: group }), t("undo.consumed")];
    const question = { title: t(`${verb}.title`), effects, action: t(`${verb}.submit`), isDangerous: true };
    const path = "/v1/groups/{group}/offsets:undo";
    const call: Call = { method: "POST", path, values: { group }, body: { undo: token } };
    const copy = { call, gantry: gantryCommand("offset", "undo", group, token) };
    if (await confirm({ ...question, copy })) undo.mutate();
  };
  const Icon = isUndone ? IconArrowForwardUp : IconArrowBackUp;
  return (
    <Button
      size="xs"
      variant="default"
      leftSection={<Icon size={ICON_PX} />}
      loading={undo.isPending}
      onClick={() => void ask()}
    >
      {t(`${verb}.open`)}
    </Button>
  );
}
