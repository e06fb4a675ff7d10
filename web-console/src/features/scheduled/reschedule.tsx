import { Group, Radio, Stack, Text, TextInput } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import {
  checkTime,
  DELAY_DAYS_MAX,
  rescheduleCommand,
  type NewTime,
  type TimeDraft,
  type Waiting,
} from "@/models/scheduled";
import { localTime } from "@/models/times";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { useFormat } from "@/ui/format";
import { useNow } from "@/ui/now";
import { Problem } from "@/ui/problem";
import { Name } from "@/ui/value";
import { RESCHEDULE, rescheduleMessage } from "./queries";

/** The new place of a message: null for both if it was due already. */
export type NewPlace = Awaited<ReturnType<typeof rescheduleMessage>>;

/** Asks for a new time of a message, says when it will come, and lets it wait until then. */
export function RescheduleDialog({
  message,
  onClose,
  onMoved,
  onGone,
}: {
  message: Waiting;
  onClose: () => void;
  onMoved: (place: NewPlace) => void;
  /** Is called if the message does not wait any more. */
  onGone: () => void;
}) {
  const { t } = useTranslation("scheduled");
  const now = useNow();
  const [draft, setDraft] = useState<TimeDraft>({ by: "delay", delay: "10m", time: localTime(message.deliver_at) });
  const { topic, handle } = message;
  const move = useMutation({
    mutationFn: (body: NewTime) => rescheduleMessage(topic, handle, body),
    onSuccess: onMoved,
    onError: (error) => {
      if (asApiError(error).kind === "unknown-message") onGone();
    },
  });
  const checked = checkTime(draft, now);
  return (
    <Dialog opened onClose={onClose} size="lg" title={t("reschedule.title")}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          const sent = checkTime(draft, Date.now());
          if ("body" in sent) move.mutate(sent.body);
        }}
      >
        <Stack>
          {move.error !== null && <Problem error={move.error} />}
          <Text size="sm" style={{ overflowWrap: "anywhere" }}>
            {t("reschedule.message")} <Name>{message.message_id}</Name>
          </Text>
          <NewTimeFields
            draft={draft}
            problem={"problem" in checked ? checked.problem : null}
            onChange={(change) => {
              setDraft({ ...draft, ...change });
            }}
          />
          {"body" in checked && <Arrival atMs={checked.atMs} nowMs={now} topic={topic} />}
          <FormEnd
            copy={
              "body" in checked
                ? {
                    call: { method: "POST", path: RESCHEDULE, values: { topic, handle }, body: checked.body },
                    gantry: rescheduleCommand(topic, handle, checked.body),
                  }
                : undefined
            }
            onBack={onClose}
            submit={{ label: t("reschedule.submit"), isReady: "body" in checked, isBusy: move.isPending }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}

function NewTimeFields({
  draft,
  problem,
  onChange,
}: {
  draft: TimeDraft;
  problem: string | null;
  onChange: (change: Partial<TimeDraft>) => void;
}) {
  const { t } = useTranslation("scheduled");
  const error = problem === null ? null : t(`reschedule.problem.${problem}`, { days: DELAY_DAYS_MAX });
  return (
    <>
      <Radio.Group
        label={t("reschedule.by")}
        value={draft.by}
        onChange={(value) => {
          onChange({ by: value === "time" ? "time" : "delay" });
        }}
      >
        <Group gap="lg" mt={6}>
          <Radio value="delay" label={t("reschedule.byDelay")} />
          <Radio value="time" label={t("reschedule.byTime")} />
        </Group>
      </Radio.Group>
      {draft.by === "delay" ? (
        <TextInput
          label={t("reschedule.delay")}
          description={t("reschedule.delayHint")}
          autoComplete="off"
          maxLength={16}
          data-autofocus
          error={error}
          value={draft.delay}
          onChange={(event) => {
            onChange({ delay: event.currentTarget.value });
          }}
        />
      ) : (
        <TextInput
          label={t("reschedule.time")}
          description={t("reschedule.timeHint")}
          type="datetime-local"
          step={1}
          error={error}
          value={draft.time}
          onChange={(event) => {
            onChange({ time: event.currentTarget.value });
          }}
        />
      )}
    </>
  );
}

function Arrival({ atMs, nowMs, topic }: { atMs: number; nowMs: number; topic: string }) {
  const { t } = useTranslation("scheduled");
  const format = useFormat();
  const text =
    atMs <= nowMs
      ? t("reschedule.atOnce", { topic })
      : t("reschedule.then", { topic, time: format.time(atMs), age: format.duration((atMs - nowMs) / 1000) });
  return (
    <Text size="sm" role="status" style={{ overflowWrap: "anywhere" }}>
      {text}
    </Text>
  );
}
