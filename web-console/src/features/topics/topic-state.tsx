import { Badge, Tooltip } from "@mantine/core";
import { useTranslation } from "react-i18next";
import type { Topic } from "@/api/topics";

const COLORS = { applied: "green", pending: "orange", unknown: "gray" } as const;

/** Whether the brokers have the settings; the tooltip names those that lack them. */
export function TopicState({ topic }: { topic: Topic }) {
  const { t } = useTranslation("topics");
  const badge = (
    <Badge color={COLORS[topic.state]} variant="light" tt="none" radius="sm">
      {t(`state.${topic.state}`)}
    </Badge>
  );
  return topic.pending.length === 0 ? badge : <Tooltip label={topic.pending.join(", ")}>{badge}</Tooltip>;
}
