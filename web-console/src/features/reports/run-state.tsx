import { Badge, Group, Progress, Text } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { isActive, type ReportRun } from "@/models/reports";

const COLORS = { queued: "gray", running: "cyan", succeeded: "green", failed: "red", timed_out: "red" } as const;

/** The status of a run; its colour only repeats the word. */
export function RunStatus({ run }: { run: ReportRun }) {
  const { t } = useTranslation("reports");
  return (
    <Badge variant="light" radius="sm" tt="none" autoContrast color={COLORS[run.status]}>
      {t(`status.${run.status}`)}
    </Badge>
  );
}

/** How far an active run is, and what it does. */
export function RunProgress({ run }: { run: ReportRun }) {
  const { t } = useTranslation("reports");
  if (!isActive(run)) return null;
  const percent = run.progress?.percent ?? null;
  return (
    <Group gap={8} wrap="nowrap" miw={0}>
      {percent !== null && <Progress value={percent} w={110} flex="none" aria-label={t("progress")} />}
      <Text span inherit c="dimmed" style={{ overflowWrap: "anywhere" }}>
        {percent === null ? "" : `${percent} % `}
        {run.progress?.step ?? t(`waiting.${run.status}`)}
      </Text>
    </Group>
  );
}
