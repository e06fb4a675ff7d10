import { Button } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { IconPlayerPlay } from "@tabler/icons-react";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { isActive, type Report } from "@/models/reports";
import { useFailureNotice } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { keys, startRun } from "./queries";

const ICON_PX = 16;

/** Starts a run of a job. Nothing is shown to who may not do it. */
export function RunNow({ report, isCompact = false }: { report: Report; isCompact?: boolean }) {
  const { t } = useTranslation("reports");
  const has = useOperations();
  const isOperator = useRole("operator");
  const client = useQueryClient();
  const noteFailure = useFailureNotice();
  const name = t(`job.${report.job}.name`, { defaultValue: report.job });
  const start = useMutation({
    mutationFn: () => startRun(report.job),
    onSuccess: () => {
      notifications.show({ message: t("run.started", { name }), color: "green" });
      void client.invalidateQueries({ queryKey: keys.all });
    },
    onError: (error) => {
      noteFailure(t("run.refused", { name }), error);
    },
  });
  if (!isOperator || !has(["POST /v1/reports/{job}/runs"])) return null;
  const isBusy = report.last_run !== null && isActive(report.last_run);
  return (
    <Button
      size={isCompact ? "compact-sm" : "xs"}
      variant={isCompact ? "default" : "filled"}
      leftSection={<IconPlayerPlay size={ICON_PX} />}
      loading={start.isPending}
      disabled={isBusy}
      aria-label={isCompact ? t("run.nowOf", { name }) : undefined}
      onClick={() => {
        start.mutate();
      }}
    >
      {t("run.now")}
    </Button>
  );
}
