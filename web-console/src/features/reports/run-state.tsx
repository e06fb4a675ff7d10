import { Badge, Group, Progress, Text } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { isActive, isTriedAgain, type ReportRun } from "@/models/reports";
import { Name } from "@/ui/value";

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

/** How far an active run is, and what it does; or why its last attempt failed, if there will be another one. */
export function RunProgress({ run }: { run: ReportRun }) {
  const { t } = useTranslation("reports");
  if (!isActive(run)) return null;
  if (isTriedAgain(run)) {
    return (
      <Text span inherit style={{ overflowWrap: "anywhere" }}>
        {t("waiting.again", { attempt: run.attempt })}{" "}
        {run.error === null ? t("run.noReason") : <Name>{run.error}</Name>}
      </Text>
    );
  }
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
