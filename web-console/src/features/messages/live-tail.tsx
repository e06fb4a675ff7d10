import { Alert, Button, Group, NativeSelect, Stack, Text } from "@mantine/core";
import { useEffect, useRef, useState } from "react";
import { useTranslation } from "react-i18next";
import { getTicket, type Message } from "@/api/messages";
import { StreamClient, type StreamState } from "@/live/stream-client";
import { gantryCommand } from "@/models/commands";
import { arrived, EMPTY_TAIL, reconnected, skipped, type TailView } from "@/models/tail";
import { useIsGatewayLost } from "@/ui/contact";
import { CopyAs } from "@/ui/copy-as";
import { useFormat } from "@/ui/format";
import { Empty } from "@/ui/page-frame";
import { useCaller } from "@/ui/session";
import { saveMessages } from "./export";
import { MessageTable } from "./message-table";

const RATES = ["10", "100", "500", "2000"];
// The view changes four times a second, however many messages come.
const FLUSH_MS = 250;
const CREDIT = { messages: 4_000, bytes: 16 * 1024 * 1024 };

/** The messages of a topic as they arrive. Messages that are not shown are counted. */
export function LiveTail({
  topic,
  tags,
  sql,
  onOpen,
}: {
  topic: string;
  tags: string;
  sql: string;
  onOpen: (message: Message) => void;
}) {
  const { t } = useTranslation("messages");
  const format = useFormat();
  const [rate, setRate] = useState("100");
  const [isPaused, setPaused] = useState(false);
  const [view, setView] = useState<TailView<Message>>(EMPTY_TAIL);
  const [state, setState] = useState<[StreamState, string | null]>(["connecting", null]);
  // Only after the gateway's `subscribed` does a new message surely come.
  const [isLive, setLive] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const [isRefused, setRefused] = useState(false);
  const stream = useRef<{ client: StreamClient; subscription: string } | null>(null);
  const connecting = useRef<StreamClient | null>(null);
  const isIn = useCaller() !== null;
  const isLost = useIsGatewayLost();
  useEffect(() => {
    if (isIn && !isLost) connecting.current?.retryNow();
  }, [isIn, isLost]);
  useEffect(() => {
    const waiting: Message[] = [];
    let unpaid = { messages: 0, bytes: 0 };
    const flush = setInterval(() => {
      if (waiting.length === 0) return;
      const batch = waiting.splice(0);
      setView((old) => arrived(old, batch));
      // Only what is in the view gives credit back. So a tab that is too busy, or hidden and rarely woken, holds no more
      // messages than its credit; the gateway skips the others and counts them.
      if (stream.current !== null) client.credit(stream.current.subscription, unpaid.messages, unpaid.bytes);
      unpaid = { messages: 0, bytes: 0 };
    }, FLUSH_MS);
    const url = `${window.location.origin.replace(/^http/, "ws")}/v1/stream`;
    const client = new StreamClient({
      url,
      ticket: getTicket,
      onState: (next, reason) => {
        // The next connection has a subscription of its own, and a credit of its own.
        stream.current = null;
        setLive(false);
        setPaused(false);
        setState([next, reason]);
      },
      onFrame: (frame) => {
        if (frame.type === "subscribed") {
          stream.current = { client, subscription: frame.subscription };
          unpaid = { messages: 0, bytes: 0 };
          setLive(true);
          setPaused(false);
          setProblem(null);
          setRefused(false);
          setView(reconnected);
        } else if (frame.type === "messages") {
          const messages = frame.messages as unknown as Message[];
          waiting.push(...messages);
          unpaid.messages += messages.length;
          unpaid.bytes += messages.reduce((sum, message) => sum + message.size, 0);
        } else if (frame.type === "state" && frame.skipped !== undefined) {
          const count = frame.skipped;
          setView((old) => skipped(old, count));
        } else if (frame.type === "error") {
          setProblem(frame.problem.detail);
          // The subscription was refused, or it has ended because its topic is gone.
          if (frame.subscription === undefined || frame.problem.type.endsWith("/unknown-topic")) {
            stream.current = null;
            setRefused(true);
          }
        }
      },
    });
    connecting.current = client;
    const filter = sql !== "" ? { sql } : tags;
    client.subscribe({
      mode: "tail",
      topic,
      rate_per_s: Number(rate),
      credit: CREDIT,
      ...(filter === "" ? {} : { filter }),
    });
    return () => {
      clearInterval(flush);
      const rest = waiting.splice(0);
      setView((old) => arrived(old, rest));
      client.close();
      stream.current = connecting.current = null;
    };
  }, [topic, tags, sql, rate]);
  const toggle = () => {
    const open = stream.current;
    if (open === null) return;
    if (isPaused) open.client.resume(open.subscription);
    else open.client.pause(open.subscription);
    setPaused(!isPaused);
  };
  const [reached, reason] = state;
  const isConnected = reached === "open" || reached === "connecting";
  const connection =
    isConnected && isLost
      ? "silent"
      : reached !== "open"
        ? reached
        : isRefused
          ? "refused"
          : isLive
            ? "open"
            : "connecting";
  return (
    <Stack gap="sm">
      <Group align="flex-end" gap="sm">
        <NativeSelect
          label={t("tail.rate")}
          value={rate}
          data={RATES.map((value) => ({ value, label: t("tail.perSecond", { rate: format.count(value) }) }))}
          onChange={(event) => {
            setRate(event.currentTarget.value);
          }}
        />
        <Button variant="default" onClick={toggle} disabled={connection !== "open"}>
          {isPaused ? t("tail.resume") : t("tail.pause")}
        </Button>
        <Button
          variant="default"
          disabled={view.rows.length === 0}
          onClick={() => {
            saveMessages(view.rows, `${topic}.ndjson`);
          }}
        >
          {t("export")}
        </Button>
        <CopyAs
          call={{ method: "POST", path: "/v1/tickets" }}
          gantry={gantryCommand(
            "tail",
            topic,
            ...(sql !== "" ? ["--sql", sql] : tags !== "" ? ["--filter", tags] : []),
            "--rate",
            rate,
          )}
        />
      </Group>
      <Text size="sm" c="dimmed" role="status">
        {isPaused && connection === "open" ? t("tail.paused") : t(`tail.state.${connection}`)}
        {reason !== null && ` (${reason})`} · {t("tail.received", { received: format.count(view.received) })}
        {view.left > 0 && ` · ${t("tail.left", { left: format.count(view.left) })}`}
        {view.skipped > 0n && ` · ${t("tail.skipped", { skipped: format.count(view.skipped) })}`}
      </Text>
      {problem !== null && (
        <Alert role="alert" color="red" variant="light">
          {problem}
        </Alert>
      )}
      {view.rows.length === 0 ? <Empty>{t("tail.none")}</Empty> : <MessageTable rows={view.rows} onOpen={onOpen} />}
    </Stack>
  );
}
