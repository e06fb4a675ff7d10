import { Text } from "@mantine/core";
import { IconArrowDownRight, IconArrowUpRight, IconEqual } from "@tabler/icons-react";
import { useTranslation } from "react-i18next";
import { useFormat } from "@/ui/format";
import { Value } from "@/ui/value";

const ICON_PX = 14;
// Slower changes are within the error of two counts.
const STEADY_PER_S = 0.05;

/** Whether a backlog grows or drains, with its speed in messages per second; in words for those who see no arrow. */
export function Trend({ perSecond, reason }: { perSecond: number | null; reason?: string | null }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  if (perSecond === null) return <Value reason={reason ?? null}>{null}</Value>;
  const way = Math.abs(perSecond) < STEADY_PER_S ? "steady" : perSecond > 0 ? "grows" : "drains";
  const Icon = { steady: IconEqual, grows: IconArrowUpRight, drains: IconArrowDownRight }[way];
  return (
    <Text span inherit style={{ whiteSpace: "nowrap" }}>
      <Icon size={ICON_PX} aria-hidden style={{ verticalAlign: "-2px" }} />{" "}
      {t(`trend.${way}`, { rate: format.rate(Math.abs(perSecond)) })}
    </Text>
  );
}
