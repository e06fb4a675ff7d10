import { Code, Text } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { isScheduleWaiting, type Report } from "@/models/reports";

/** The schedule that is in force, and whether a change of it still waits for the scheduler. */
export function ScheduleText({ report }: { report: Report }) {
  const { t } = useTranslation("reports");
  return (
    <span>
      {report.schedule === null ? (
        t("schedule.onDemand")
      ) : (
        <>
          <Code>{report.schedule}</Code>{" "}
          <Text span size="xs" c="dimmed">
            {report.time_zone}
          </Text>
        </>
      )}
      {isScheduleWaiting(report) && (
        <Text size="xs" c="dimmed" role="status">
          {t("schedule.waiting")}
        </Text>
      )}
    </span>
  );
}
