import { Alert, Button, Group, Stack, Text } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { messageKeys } from "@/api/messages";
import type { OperationName } from "@/api/operations";
import { gantryCommand, type Call } from "@/models/commands";
import type { Transaction } from "@/models/transactions";
import { useConfirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { Problem } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { checkNow, decide, keys, type Checked, type Decided } from "./queries";

type Action = "commit" | "rollback" | "check";

const PATH = "/v1/transactions/{transaction}";

/** What can be done with a transaction, and how it ended. */
export function Actions({ transaction }: { transaction: Transaction }) {
  const { t } = useTranslation("transactions");
  const has = useOperations();
  const isOperator = useRole("operator");
  const client = useQueryClient();
  const [outcome, setOutcome] = useState<string | null>(null);
  // The decision may reach the broker while the answer is shown.
  const shown = transaction.delivered_at === null ? outcome : (outcome?.replace(/_later$/, "") ?? null);
  const id = transaction.transaction;
  const act = useMutation({
    mutationFn: async (action: Action) =>
      action === "check" ? ofCheck(await checkNow(id)) : ofDecision(await decide(id, action)),
    onMutate: () => {
      setOutcome(null);
    },
    onSuccess: setOutcome,
    // Also after a refusal: somebody else may have decided.
    onSettled: () => {
      void client.invalidateQueries({ queryKey: keys.all });
      void client.invalidateQueries({ queryKey: messageKeys.detail(`${transaction.topic} ${id}`) });
    },
  });
  const can = (action: Action) =>
    isOperator && transaction.state === "open" && has([`POST ${PATH}:${action}` as OperationName]);
  // Only its broker can ask a RocketMQ client.
  const actions = (["commit", "rollback", "check"] as const).filter(
    (action) => can(action) && (action !== "check" || transaction.origin === "http"),
  );
  return (
    <Stack gap="xs">
      {act.error !== null && <Problem error={act.error} />}
      {shown !== null && (
        <Alert role="status" variant="light" color={OUTCOME_COLORS[shown] ?? "green"}>
          <Text size="sm">{t(`outcome.${shown}`)}</Text>
        </Alert>
      )}
      <Group gap="xs">
        <Buttons
          transaction={transaction}
          actions={actions}
          running={act.isPending ? act.variables : null}
          onAct={act.mutate}
        />
        <CopyAs
          call={{ method: "GET", path: PATH, values: { transaction: id } }}
          gantry={gantryCommand("transaction", "show", id)}
        />
      </Group>
      {act.isPending && act.variables === "check" && (
        <Text size="sm" c="dimmed" role="status">
          {t("check.asking")}
        </Text>
      )}
    </Stack>
  );
}

function Buttons({
  transaction,
  actions,
  running,
  onAct,
}: {
  transaction: Transaction;
  actions: readonly Action[];
  running: Action | null;
  onAct: (action: Action) => void;
}) {
  const { t } = useTranslation("transactions");
  const confirm = useConfirm();
  const names = { id: transaction.transaction, topic: transaction.topic, group: transaction.group };
  const ask = async (action: Action) => {
    const effects = [
      t(`${action}.effect`, names),
      ...(action === "check" ? [t("check.kept")] : [t("decision.final", names)]),
      ...(action !== "check" && transaction.origin === "remoting" ? [t("decision.remoting")] : []),
    ];
    const question = { title: t(`${action}.title`), effects, action: t(`${action}.open`) };
    const call: Call = { method: "POST", path: `${PATH}:${action}`, values: { transaction: names.id } };
    const copy = { call, gantry: gantryCommand("transaction", action, names.id) };
    if (await confirm({ ...question, isDangerous: action === "rollback", copy })) onAct(action);
  };
  return actions.map((action) => (
    <Button
      key={action}
      size="xs"
      {...STYLES[action]}
      loading={running === action}
      disabled={running !== null && running !== action}
      onClick={() => void ask(action)}
    >
      {t(`${action}.open`)}
    </Button>
  ));
}

const STYLES = {
  commit: { variant: "filled" },
  rollback: { variant: "light", color: "red" },
  check: { variant: "default" },
} as const;

const OUTCOME_COLORS: Record<string, string> = {
  committed_later: "yellow",
  rolled_back_later: "yellow",
  unanswered: "yellow",
  not_asked: "gray",
};

function ofDecision({ state, delivered }: Decided): string {
  return delivered ? state : `${state}_later`;
}

function ofCheck({ asked, decision }: Checked): string {
  if (!asked && decision !== "unknown") return "not_asked";
  return decision === "unknown" ? "unanswered" : `answered_${decision}`;
}
