import { Group, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { isActive, type Report } from "@/models/reports";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { PageFrame, QueryState } from "@/ui/page-frame";
import { Ago } from "@/ui/value";
import { reportsQuery } from "./queries";
import { RunNow } from "./run-now";
import { RunProgress, RunStatus } from "./run-state";
import { ScheduleText } from "./schedule-text";

/** The report jobs: when each runs, how its last run ended, and the way to run it now. */
export function ReportsPage() {
  const { t } = useTranslation("reports");
  const navigate = useNavigate();
  const query = useQuery(reportsQuery);
  return (
    <PageFrame
      title={t("title")}
      description={t("description")}
      actions={<CopyAs call={{ method: "GET", path: "/v1/reports" }} gantry={gantryCommand("report", "list")} />}
    >
      <QueryState query={query} isEmpty={(reports) => reports.length === 0}>
        {(reports) => (
          <JobTable
            reports={reports}
            onOpen={(row) => void navigate({ to: "/reports/$job", params: { job: row.job } })}
          />
        )}
      </QueryState>
    </PageFrame>
  );
}

function JobTable({ reports, onOpen }: { reports: Report[]; onOpen: (report: Report) => void }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const columns: Column<Report>[] = [
    {
      key: "job",
      header: t("report"),
      width: "minmax(16rem, 1.6fr)",
      cell: (row) => (
        <Stack gap={0}>
          <Link to="/reports/$job" params={{ job: row.job }} className="row-link">
            {t(`job.${row.job}.name`, { defaultValue: row.job })}
          </Link>
          <Text size="xs" c="dimmed" fw={400}>
            {t(`job.${row.job}.about`, { defaultValue: row.job })}
          </Text>
        </Stack>
      ),
    },
    { key: "schedule", header: t("schedule.title"), cell: (row) => <ScheduleText report={row} /> },
    {
      key: "next",
      header: t("schedule.next"),
      width: "13rem",
      cell: (row) => format.time(row.next_run_at) ?? t("schedule.none"),
    },
    {
      key: "last",
      header: t("run.last"),
      width: "minmax(15rem, 1.4fr)",
      cell: (row) => <LastRun report={row} />,
    },
    { key: "run", header: t("run.now"), width: "9.5rem", cell: (row) => <RunNow report={row} isCompact /> },
  ];
  return <DataTable label={t("title")} rows={reports} columns={columns} rowKey={(row) => row.job} onOpen={onOpen} />;
}

function LastRun({ report }: { report: Report }) {
  const { t } = useTranslation("reports");
  const run = report.last_run;
  if (run === null) return <span>{t("run.never")}</span>;
  return (
    <Group gap={8}>
      <RunStatus run={run} />
      {isActive(run) ? <RunProgress run={run} /> : <Ago time={run.finished_at ?? run.created_at} />}
    </Group>
  );
}
