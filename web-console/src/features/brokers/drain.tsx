import { Button } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { hasSubstitute, type BrokerSummary, type ClusterSummary } from "@/models/cluster";
import { gantryCommand } from "@/models/commands";
import { useConfirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { useFailureNotice } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { keys, setDrained } from "./queries";

/** Drains a broker or takes that back, after a question that names what happens. */
export function Drain({ broker, cluster }: { broker: BrokerSummary; cluster: ClusterSummary }) {
  const { t } = useTranslation("brokers");
  const has = useOperations();
  const isOperator = useRole("operator");
  const confirm = useConfirm();
  const client = useQueryClient();
  const noteFailure = useFailureNotice();
  const name = broker.name;
  const change = useMutation({
    mutationFn: (isDrained: boolean) => setDrained(name, isDrained),
    onSuccess: async ({ drained }) => {
      notifications.show({
        message: drained ? t("drain.done", { name }) : t("undrain.done", { name }),
        color: "green",
      });
      await client.invalidateQueries({ queryKey: keys.all });
    },
    onError: (error) => {
      noteFailure(t("drain.failed", { name }), error);
    },
  });
  // A broker that does not tell may be either, so nothing is offered.
  if (!isOperator || broker.isDrained === null) return null;
  const operation = broker.isDrained ? "undrain" : "drain";
  const path = `/v1/brokers/{broker}:${operation}` as const;
  if (!has([`POST ${path}`])) return null;
  const ask = async () => {
    const agreed = broker.isDrained
      ? await confirm({
          title: t("undrain.title", { name }),
          effects: [t("undrain.takes", { name })],
          action: t("undrain.submit"),
        })
      : await confirm({
          title: t("drain.title", { name }),
          effects: [
            t("drain.refuses", { name }),
            hasSubstitute(cluster.brokers, name) ? t("drain.others") : t("drain.nobody", { name }),
            t("drain.ordered", { name }),
            t("drain.consumers"),
          ],
          action: t("drain.submit"),
          isDangerous: true,
        });
    if (agreed) change.mutate(!broker.isDrained);
  };
  return (
    <>
      <CopyAs
        label={broker.isDrained ? t("undrain.copy") : t("drain.copy")}
        call={{ method: "POST", path, values: { broker: name } }}
        gantry={gantryCommand("broker", operation, name)}
      />
      <Button
        size="xs"
        variant={broker.isDrained ? "filled" : "default"}
        loading={change.isPending}
        onClick={() => void ask()}
      >
        {broker.isDrained ? t("undrain.open") : t("drain.open")}
      </Button>
    </>
  );
}
