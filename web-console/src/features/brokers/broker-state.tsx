import { Badge, Tooltip } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { stateOf, type BrokerSummary } from "@/models/cluster";

const COLORS = { unreachable: "red", refusing: "red", drained: "orange", unknown: "gray", fine: "green" } as const;

/** Whether a broker takes messages, and why not; the colour only repeats the word. */
export function BrokerState({ broker }: { broker: BrokerSummary }) {
  const { t } = useTranslation("brokers");
  const state = stateOf(broker);
  const badge = (
    <Badge variant="light" radius="sm" tt="none" autoContrast color={COLORS[state]}>
      {t(`state.${state}`)}
    </Badge>
  );
  const why = broker.detail ?? broker.reason;
  return why === null ? badge : <Tooltip label={why}>{badge}</Tooltip>;
}
