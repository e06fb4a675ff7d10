import { Alert, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import { immunityEnd, PRODUCERS, type Transaction } from "@/models/transactions";
import { Facts, type Fact } from "@/ui/facts";
import { useFormat } from "@/ui/format";
import { MessageLife } from "@/ui/message-life";
import { useNow } from "@/ui/now";
import { useOperations, useRole } from "@/ui/session";
import { Name, TimeAndDistance, Value } from "@/ui/value";
import { Actions } from "./actions";
import { deciderQuery } from "./queries";
import { StateBadge } from "./state-badge";

const LIFE_EVERY_MS = 10_000;

/** One transaction: its state, who decided, what can be done, and the life of its message. */
export function TransactionDetails({ transaction }: { transaction: Transaction }) {
  const { t } = useTranslation("transactions");
  const has = useOperations();
  const { topic, broker } = transaction;
  const facts: Fact[] = [
    [t("state"), <StateBadge key="state" transaction={transaction} />],
    [
      t("topic"),
      <Link key="topic" to="/topics/$topic" params={{ topic }} className="row-link">
        <Name>{topic}</Name>
      </Link>,
    ],
    [t("group"), <Name key="group">{transaction.group}</Name>],
    [t("origin"), t(`origins.${transaction.origin}`)],
    [t("broker"), <Value key="broker">{broker === null ? null : <Name>{broker}</Name>}</Value>],
    [t("begun"), <TimeAndDistance key="begun" time={transaction.created_at} />],
    ...useProgress(transaction),
    [t("message"), <MessageLink key="message" transaction={transaction} />],
  ];
  return (
    <Stack gap="md">
      <Actions transaction={transaction} />
      {transaction.error !== null && (
        <Alert color="orange" variant="light" title={t("deliveryFailed")}>
          <Text size="sm" style={{ overflowWrap: "anywhere" }}>
            <Name>{transaction.error}</Name>
          </Text>
        </Alert>
      )}
      <Facts facts={facts} />
      {has(["GET /v1/messages/{id}/trace"]) && (
        <MessageLife id={transaction.message_id} topic={topic} everyMs={LIFE_EVERY_MS} />
      )}
    </Stack>
  );
}

/** The facts that depend on the state: the checks of an open transaction, or its end. */
function useProgress(transaction: Transaction): Fact[] {
  const { t } = useTranslation("transactions");
  const format = useFormat();
  const now = useNow();
  const checks: Fact = [t("checks"), format.count(transaction.checks)];
  if (transaction.state === "open") {
    const immune = immunityEnd(transaction, now);
    return [
      checks,
      [t("nextCheckFrom"), <TimeAndDistance key="next" time={transaction.next_check_at} />],
      [t("immunity"), immune === undefined ? t("immunityOver") : <TimeAndDistance key="immunity" time={immune} />],
    ];
  }
  if (transaction.state === "expired") return [checks, [t("decidedBy"), t("nobody")]];
  const isAtBroker = transaction.decided_at === null;
  const notYet = transaction.delivered_at === null;
  return [
    checks,
    [t("decided"), <TimeAndDistance key="decided" time={transaction.decided_at} />],
    [t("decidedBy"), isAtBroker ? t("clientAtBroker") : <Decider key="by" transaction={transaction.transaction} />],
    [
      t("delivered"),
      isAtBroker ? (
        t("atBroker")
      ) : notYet ? (
        t("notYet")
      ) : (
        <TimeAndDistance key="delivered" time={transaction.delivered_at} />
      ),
    ],
  ];
}

/** Who decided. The audit trail knows it, and only admins may read it. */
function Decider({ transaction }: { transaction: string }) {
  const { t } = useTranslation("transactions");
  const has = useOperations();
  const isAdmin = useRole("admin");
  const isReadable = isAdmin && has(["GET /v1/audit"]);
  const { data, error, isPending } = useQuery({ ...deciderQuery(transaction), enabled: isReadable });
  if (!isReadable) return <Value reason={t("onlyAdmins")}>{null}</Value>;
  if (isPending) return <>…</>;
  if (data === undefined || data === null) return <Value reason={error?.message ?? t("noEntry")}>{null}</Value>;
  return data === PRODUCERS ? <>{t("producers")}</> : <Name>{data}</Name>;
}

/** The id of the message; a link once consumers can read it. */
function MessageLink({ transaction }: { transaction: Transaction }) {
  const { topic, message_id: id, state } = transaction;
  if (state !== "committed") return <Name>{id}</Name>;
  return (
    <Link to="/messages" search={{ by: "id", topic, value: id } as never} className="row-link">
      <Name>{id}</Name>
    </Link>
  );
}
