import { Button, Group, Stack } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { gantryCommand, type Call } from "@/models/commands";
import type { Waiting } from "@/models/scheduled";
import { BodyViewer } from "@/ui/body-viewer";
import { useConfirm } from "@/ui/confirm";
import { Facts, Properties, type Fact } from "@/ui/facts";
import { useFormat } from "@/ui/format";
import { MessageLife } from "@/ui/message-life";
import { Problem } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { Name, TimeAndDistance } from "@/ui/value";
import { RECALL, recallMessage, RESCHEDULE } from "./queries";
import { RescheduleDialog, type NewPlace } from "./reschedule";

export interface MessageEvents {
  onRecalled: () => void;
  /** Is called if the message does not wait any more. */
  onGone: () => void;
  onMoved: (place: NewPlace) => void;
}

/** One message that waits: when it comes, its body and properties, and what can be done with it. */
export function WaitingDetails({ message, ...events }: { message: Waiting } & MessageEvents) {
  const { t } = useTranslation("scheduled");
  const format = useFormat();
  const has = useOperations();
  const facts: Fact[] = [
    [t("due"), <TimeAndDistance key="due" time={message.deliver_at} />],
    [t("stored"), <TimeAndDistance key="stored" time={message.stored_at} />],
    [t("born"), <TimeAndDistance key="born" time={message.born_at} />],
    [
      t("topic"),
      <Link key="topic" to="/topics/$topic" params={{ topic: message.topic }} className="row-link">
        <Name>{message.topic}</Name>
      </Link>,
    ],
    [t("id"), <Name key="id">{message.message_id}</Name>],
    [t("place"), <Name key="place">{`${message.broker} / ${message.queue_id}`}</Name>],
    [t("keys"), <Name key="keys">{message.keys.join(", ") || "–"}</Name>],
    [t("tag"), <Name key="tag">{message.tag ?? "–"}</Name>],
    [t("host"), <Name key="host">{message.born_host}</Name>],
    [t("size"), format.bytes(message.size)],
  ];
  return (
    <Stack gap="md">
      <Actions message={message} {...events} />
      <Facts facts={facts} />
      <BodyViewer body={message.body} encoding={message.encoding} />
      <Properties title={t("properties")} properties={message.properties} />
      {has(["GET /v1/messages/{id}/trace"]) && <MessageLife id={message.message_id} topic={message.topic} />}
    </Stack>
  );
}

function Actions({ message, onRecalled, onGone, onMoved }: { message: Waiting } & MessageEvents) {
  const { t } = useTranslation("scheduled");
  const format = useFormat();
  const has = useOperations();
  const isOperator = useRole("operator");
  const confirm = useConfirm();
  const [isMoving, setMoving] = useState(false);
  const { topic, handle, message_id: id } = message;
  const recall = useMutation({
    mutationFn: () => recallMessage(topic, handle),
    onSuccess: (outcome) => {
      if (outcome === "recalled") onRecalled();
      else onGone();
    },
  });
  const canRecall = isOperator && has([`POST ${RECALL}`]);
  const canMove = isOperator && has([`POST ${RESCHEDULE}`]);
  if (!canRecall && !canMove) return null;
  const ask = async () => {
    const time = format.time(message.deliver_at);
    const effects = [t("recall.effect", { id, topic, time }), t("recall.final"), t("recall.late")];
    const question = { title: t("recall.title"), effects, action: t("recall.open"), isDangerous: true };
    const call: Call = { method: "POST", path: RECALL, values: { topic, handle } };
    const copy = { call, gantry: gantryCommand("message", "recall", topic, handle) };
    if (await confirm({ ...question, copy })) recall.mutate();
  };
  return (
    <Stack gap="xs">
      {recall.error !== null && <Problem error={recall.error} />}
      <Group gap="xs">
        {canMove && (
          <Button
            size="xs"
            variant="default"
            onClick={() => {
              setMoving(true);
            }}
          >
            {t("reschedule.open")}
          </Button>
        )}
        {canRecall && (
          <Button size="xs" variant="light" color="red" loading={recall.isPending} onClick={() => void ask()}>
            {t("recall.open")}
          </Button>
        )}
      </Group>
      {isMoving && (
        <RescheduleDialog
          message={message}
          onClose={() => {
            setMoving(false);
          }}
          onGone={onGone}
          onMoved={(place) => {
            setMoving(false);
            onMoved(place);
          }}
        />
      )}
    </Stack>
  );
}
