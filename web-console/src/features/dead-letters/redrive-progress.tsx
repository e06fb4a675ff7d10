import { Alert, Anchor, Group, Progress, Text } from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect } from "react";
import { useTranslation } from "react-i18next";
import { isActive, shareDone, type Job } from "@/models/jobs";
import { useFormat } from "@/ui/format";
import { Problem } from "@/ui/problem";
import { lettersKey, redriveJobQuery } from "./queries";

const COLORS: Record<Job["state"], string> = {
  queued: "blue",
  running: "blue",
  done: "green",
  failed: "red",
  cancelled: "orange",
};

/** How far a redrive is. When it has ended, the letters are read again. */
export function RedriveProgress({ group, id, onClose }: { group: string; id: string; onClose: () => void }) {
  const { t } = useTranslation("dead-letters");
  const format = useFormat();
  const client = useQueryClient();
  const { data: job, error } = useQuery(redriveJobQuery(id));
  const hasEnded = job !== undefined && !isActive(job);
  useEffect(() => {
    if (hasEnded) void client.invalidateQueries({ queryKey: lettersKey(group) });
  }, [client, group, hasEnded]);
  if (job === undefined) return error === null ? null : <Problem error={error} />;
  const share = shareDone(job);
  const hasFailures = job.failed > 0 && job.state === "done";
  return (
    <Alert
      role="status"
      variant="light"
      color={hasFailures ? "orange" : COLORS[job.state]}
      title={t(`progress.${job.state}`)}
      withCloseButton={hasEnded}
      closeButtonLabel={t("common:close")}
      onClose={onClose}
    >
      <Group gap="sm">
        {isActive(job) && share !== null && <Progress value={share * 100} w={160} aria-label={t("progress.running")} />}
        <Text size="sm">
          {t("progress.counts", { done: format.count(job.done), failed: format.count(job.failed) })}
        </Text>
        <Anchor component={Link} to="/jobs" search={{ job: id } as never} size="sm">
          {t("progress.job")}
        </Anchor>
      </Group>
      {job.error !== null && (
        <Text size="sm" style={{ overflowWrap: "anywhere" }}>
          {job.error}
        </Text>
      )}
    </Alert>
  );
}
