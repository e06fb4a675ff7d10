import { Anchor, Button, Group, Stack, Table, Title } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import { lifeQuery, type Message } from "@/api/messages";
import { sendMessage, type NewMessage } from "@/api/topics";
import { gantryCommand } from "@/models/commands";
import { Panel } from "@/ui/dialog";
import { BodyViewer } from "@/ui/body-viewer";
import { useConfirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { useFormat } from "@/ui/format";
import { MessageLife } from "@/ui/message-life";
import { QueryState } from "@/ui/page-frame";
import { useFailureNotice } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { Name } from "@/ui/value";
import { saveMessages } from "./export";
import { messageQuery } from "./queries";

/** One message beside the list: body, properties, and its life. */
export function MessageDrawer({ id, topic, onClose }: { id: string; topic: string; onClose: () => void }) {
  const { t } = useTranslation("messages");
  const query = useQuery({ ...messageQuery(id, topic), enabled: id !== "" });
  return (
    <Panel opened={id !== ""} onClose={onClose} size="xl" title={t("message")}>
      {id !== "" && <QueryState query={query}>{(message) => <Details message={message} />}</QueryState>}
    </Panel>
  );
}

function Details({ message }: { message: Message }) {
  const { t } = useTranslation("messages");
  const format = useFormat();
  const has = useOperations();
  const facts: [string, React.ReactNode][] = [
    [t("id"), <Name key="id">{message.message_id}</Name>],
    [t("storedId"), <Name key="stored">{message.stored_id}</Name>],
    [t("place"), <Name key="place">{`${message.broker} / ${message.queue_id} @ ${message.queue_offset}`}</Name>],
    [t("stored"), format.time(message.stored_at)],
    [t("born"), format.time(message.born_at)],
    [t("host"), <Name key="host">{message.born_host}</Name>],
    [t("tag"), <Name key="tag">{message.tag ?? "–"}</Name>],
    [t("keys"), <Name key="keys">{message.keys.join(", ") || "–"}</Name>],
    [t("retries"), format.count(message.reconsume_times)],
    [t("size"), format.bytes(message.size)],
  ];
  return (
    <Stack gap="md">
      <Group gap="xs">
        <CopyAs
          call={{ method: "GET", path: "/v1/messages/{id}", values: { id: message.stored_id } }}
          gantry={gantryCommand("message", "get", message.stored_id)}
        />
        <Button
          size="xs"
          variant="default"
          onClick={() => {
            saveMessages([message], `${message.message_id}.ndjson`);
          }}
        >
          {t("export")}
        </Button>
        <Resend message={message} />
      </Group>
      {has(["GET /v1/messages/{id}/trace", "GET /v1/transactions"]) && <TransactionLink message={message} />}
      <BodyViewer body={message.body} encoding={message.encoding} />
      <Facts label={t("facts")} rows={facts} />
      {Object.keys(message.properties).length > 0 && (
        <>
          <Title order={3}>{t("properties")}</Title>
          <Facts
            label={t("properties")}
            rows={Object.entries(message.properties).map(([name, value]) => [
              name,
              <Name key={name}>{String(value)}</Name>,
            ])}
          />
        </>
      )}
      {has(["GET /v1/messages/{id}/trace"]) && <MessageLife id={message.stored_id} topic={message.topic} />}
    </Stack>
  );
}

function Facts({ label, rows }: { label: string; rows: [string, React.ReactNode][] }) {
  return (
    <Table aria-label={label} verticalSpacing={4} layout="fixed">
      <Table.Tbody>
        {rows.map(([name, value]) => (
          <Table.Tr key={name}>
            <Table.Th scope="row" w="34%" fw={400} c="dimmed" style={{ overflowWrap: "anywhere" }}>
              <Name>{name}</Name>
            </Table.Th>
            <Table.Td style={{ overflowWrap: "anywhere" }}>{value}</Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}

/** A link to the transaction of a message that was delivered by a decision; its life tells that. */
function TransactionLink({ message }: { message: Message }) {
  const { t } = useTranslation("messages");
  const { data } = useQuery(lifeQuery(message.stored_id, message.topic));
  if (!data?.events.some((event) => event.kind === "half")) return null;
  return (
    <Anchor component={Link} to="/transactions" search={{ transaction: data.message_id } as never} size="sm">
      {t("transaction")}
    </Anchor>
  );
}

/** Sends a copy of the message to its topic, where every group gets it. */
function Resend({ message }: { message: Message }) {
  const { t } = useTranslation("messages");
  const noteFailure = useFailureNotice();
  const has = useOperations();
  const isOperator = useRole("operator");
  const confirm = useConfirm();
  const copy = {
    body: message.body,
    encoding: message.encoding,
    ...(message.tag === null ? {} : { tag: message.tag }),
    ...(message.keys.length === 0 ? {} : { keys: message.keys }),
    properties: message.properties,
  } as unknown as NewMessage;
  const send = useMutation({
    mutationFn: () => sendMessage(message.topic, copy),
    onSuccess: (sent) => {
      notifications.show({ message: t("resend.done", { id: sent.message_id }), color: "green" });
    },
    onError: (error) => {
      noteFailure(t("resend.failed"), error);
    },
  });
  if (!isOperator || !has(["POST /v1/topics/{topic}/messages"])) return null;
  const ask = async () => {
    const effects = [t("resend.effect", { topic: message.topic }), t("resend.again")];
    if (await confirm({ title: t("resend.title"), effects, action: t("resend.submit") })) send.mutate();
  };
  return (
    <>
      <Button size="xs" variant="default" loading={send.isPending} onClick={() => void ask()}>
        {t("resend.open")}
      </Button>
      <CopyAs
        call={{
          method: "POST",
          path: "/v1/topics/{topic}/messages",
          values: { topic: message.topic },
          body: copy,
        }}
        label={t("resend.copy")}
      />
    </>
  );
}
