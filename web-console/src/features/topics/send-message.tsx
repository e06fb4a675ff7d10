import { Alert, SimpleGrid, Stack, Text, Textarea, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { sendMessage, topicKeys, type NewMessage, type Sent } from "@/api/topics";
import { gantryCommand } from "@/models/commands";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { Problem } from "@/ui/problem";
import { Name } from "@/ui/value";

const FIELDS = ["tag", "keys", "ordering_key", "delay"] as const;
type Fields = Record<(typeof FIELDS)[number] | "body", string>;

const OPTIONS = { tag: "--tag", keys: "--keys", ordering_key: "--ordering-key", delay: "--delay" } as const;

/** Sends a test message and says what became of it: stored, not stored, or unknown. */
export function SendMessage({ topic, onClose }: { topic: string; onClose: () => void }) {
  const { t } = useTranslation("topics");
  const client = useQueryClient();
  const [fields, setFields] = useState<Fields>({ body: "", tag: "", keys: "", ordering_key: "", delay: "" });
  const message = toMessage(fields);
  const send = useMutation({
    mutationFn: () => sendMessage(topic, message),
    onSuccess: () => client.invalidateQueries({ queryKey: topicKeys.part(topic, "queues") }),
  });
  const set = (name: keyof Fields, value: string) => {
    setFields({ ...fields, [name]: value });
  };
  return (
    <Dialog opened onClose={onClose} title={t("send.title", { topic })} size="lg">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          send.mutate();
        }}
      >
        <Stack>
          {send.error !== null && <Failed error={send.error} />}
          {send.data !== undefined && <Stored sent={send.data} />}
          <Textarea
            label={t("send.body")}
            required
            autosize
            minRows={4}
            maxRows={16}
            data-autofocus
            styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
            value={fields.body}
            onChange={(event) => {
              set("body", event.currentTarget.value);
            }}
          />
          <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
            {FIELDS.map((name) => (
              <TextInput
                key={name}
                label={t(`send.${name}`)}
                description={t(`send.help.${name}`)}
                value={fields[name]}
                onChange={(event) => {
                  set(name, event.currentTarget.value);
                }}
              />
            ))}
          </SimpleGrid>
          <FormEnd
            copy={{
              call: { method: "POST", path: "/v1/topics/{topic}/messages", values: { topic }, body: message },
              gantry: gantryCommand(
                "message",
                "send",
                topic,
                fields.body,
                ...FIELDS.flatMap((name) => (fields[name].trim() === "" ? [] : [OPTIONS[name], fields[name].trim()])),
              ),
            }}
            back={{ label: t("common:close") }}
            onBack={onClose}
            submit={{ label: t("send.submit"), isBusy: send.isPending }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}

/** Returns the message of the form's fields; empty fields are left out. */
function toMessage(fields: Fields): NewMessage {
  const given = (text: string) => (text.trim() === "" ? undefined : text.trim());
  const keys = fields.keys.split(",").flatMap((key) => (key.trim() === "" ? [] : [key.trim()]));
  const message = {
    body: fields.body,
    tag: given(fields.tag),
    keys: keys.length === 0 ? undefined : keys,
    ordering_key: given(fields.ordering_key),
    delay: given(fields.delay),
  };
  return Object.fromEntries(
    Object.entries(message).filter(([, value]) => value !== undefined),
  ) as unknown as NewMessage;
}

function Stored({ sent }: { sent: Sent }) {
  const { t } = useTranslation("topics");
  return (
    <Alert
      role="status"
      color={sent.outcome === "stored" ? "green" : "orange"}
      variant="light"
      title={t(`send.outcome.${sent.outcome}`, { defaultValue: sent.outcome })}
    >
      <Text size="sm" style={{ overflowWrap: "anywhere" }}>
        {t("send.id")} <Name>{sent.message_id}</Name>
        <br />
        {t("send.place", { broker: sent.broker, queue: sent.queue_id, offset: sent.queue_offset })}
      </Text>
    </Alert>
  );
}

/** A send that failed may have been stored all the same; the problem's outcome says what is known. */
function Failed({ error }: { error: Error }) {
  const { t } = useTranslation("topics");
  const outcome = asApiError(error).problem?.outcome ?? "unknown";
  return (
    <Stack gap={4}>
      <Problem error={error} />
      <Text size="sm" fw={600}>
        {t(`send.outcome.${outcome}`, { defaultValue: outcome })}
      </Text>
    </Stack>
  );
}
