import { Badge, Tooltip } from "@mantine/core";
import { useTranslation } from "react-i18next";

const COLORS = { applied: "green", pending: "orange", unknown: "gray" } as const;

/** Whether the brokers have the settings of a topic or group; the tooltip names those that lack them. */
export function AppliedState({ of: { state, pending } }: { of: { state: keyof typeof COLORS; pending: string[] } }) {
  const { t } = useTranslation();
  const badge = (
    <Badge color={COLORS[state]} variant="light" tt="none" radius="sm">
      {t(`applied.${state}`)}
    </Badge>
  );
  return pending.length === 0 ? badge : <Tooltip label={pending.join(", ")}>{badge}</Tooltip>;
}
