import { Alert, Button, Group, Stack, Text } from "@mantine/core";
import { IconCalendarClock, IconDownload, IconExternalLink } from "@tabler/icons-react";
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { fillPath } from "@/api/request";
import { gantryCommand } from "@/models/commands";
import { isActive, isTriedAgain, LATEST, tookSeconds, type Report } from "@/models/reports";
import { CopyAs } from "@/ui/copy-as";
import { useFormat } from "@/ui/format";
import { useNow } from "@/ui/now";
import { Empty, PageFrame, QueryState } from "@/ui/page-frame";
import { Sections } from "@/ui/sections";
import { useOperations, useRole } from "@/ui/session";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name } from "@/ui/value";
import { BacklogRows } from "./backlog-rows";
import { LagRows } from "./lag-rows";
import { reportsQuery } from "./queries";
import { RunHistory } from "./run-history";
import { RunNow } from "./run-now";
import { RunProgress, RunStatus } from "./run-state";
import { ScheduleForm } from "./schedule-form";
import { ScheduleText } from "./schedule-text";
import { ThroughputRows } from "./throughput-rows";

const ICON_PX = 16;
/** A scheduler takes a queued run within seconds. */
const QUEUED_LONG_S = 20;

/** One report: its schedule, the run under way, the rows of a run, and all runs. */
export function ReportPage() {
  const { t } = useTranslation("reports");
  const job = useParams({ strict: false }).job ?? "";
  const query = useQuery(reportsQuery);
  const report = query.data?.find((each) => each.job === job);
  const [isPlanning, setPlanning] = useState(false);
  const has = useOperations();
  const isOperator = useRole("operator");
  const mayPlan = isOperator && has(["PUT /v1/reports/{job}/schedule", "DELETE /v1/reports/{job}/schedule"]);
  return (
    <PageFrame
      title={t(`job.${job}.name`, { defaultValue: job })}
      description={report && t(`job.${job}.about`, { defaultValue: job })}
      crumbs={[{ label: t("title"), to: "/reports" }]}
      actions={
        report !== undefined && (
          <>
            <CopyAs
              call={{ method: "POST", path: "/v1/reports/{job}/runs", values: { job }, body: {} }}
              gantry={gantryCommand("report", "run", job, "--wait")}
            />
            {mayPlan && (
              <Button
                size="xs"
                variant="default"
                leftSection={<IconCalendarClock size={ICON_PX} />}
                onClick={() => {
                  setPlanning(true);
                }}
              >
                {t("schedule.change")}
              </Button>
            )}
            <RunNow report={report} />
          </>
        )
      }
    >
      <QueryState query={query} isEmpty={() => report === undefined} empty={t("noReport", { job })}>
        {() =>
          report !== undefined && (
            <>
              <Facts report={report} />
              <UnderWay report={report} />
              <ReportSections report={report} />
            </>
          )
        }
      </QueryState>
      {isPlanning && report !== undefined && (
        <ScheduleForm
          report={report}
          onClose={() => {
            setPlanning(false);
          }}
        />
      )}
    </PageFrame>
  );
}

function Facts({ report }: { report: Report }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const set = report.schedule_set;
  return (
    <Group gap="lg" align="baseline">
      <Text size="sm" component="div">
        <Text span inherit c="dimmed">
          {t("schedule.title")}{" "}
        </Text>
        <ScheduleText report={report} />
      </Text>
      {report.schedule !== null && (
        <Text size="sm">
          <Text span inherit c="dimmed">
            {t("schedule.next")}{" "}
          </Text>
          {format.time(report.next_run_at) ?? t("schedule.none")}
        </Text>
      )}
      {set !== null && (
        <Text size="sm" c="dimmed">
          {t("schedule.setBy")} <Name>{set.set_by}</Name>, <Ago time={set.set_at} />
        </Text>
      )}
    </Group>
  );
}

/** The run that is queued or running, or the reason why the last one failed. */
function UnderWay({ report }: { report: Report }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const now = useNow();
  const run = report.last_run;
  if (run === null) return null;
  if (isActive(run)) {
    const isAgain = isTriedAgain(run);
    const isLate = run.status === "queued" && !isAgain && now - Date.parse(run.created_at) > QUEUED_LONG_S * 1_000;
    return (
      <div className="panel" style={{ padding: 12 }} role="status">
        <Group gap="md" fz="sm">
          <RunStatus run={run} />
          <RunProgress run={run} />
          {run.started_at !== null && !isAgain && <Text size="sm">{format.duration(tookSeconds(run, now))}</Text>}
        </Group>
        {isLate && (
          <Text size="sm" mt={6}>
            {t("run.queuedLong")}
          </Text>
        )}
      </div>
    );
  }
  if (run.status === "succeeded") return null;
  return (
    <Alert color="red" variant="light" title={t(`run.ended.${run.status}`)}>
      <Text size="sm" style={{ overflowWrap: "anywhere" }}>
        {run.error === null ? t("run.noReason") : <Name>{run.error}</Name>} · <Ago time={run.finished_at} />
      </Text>
    </Alert>
  );
}

function ReportSections({ report }: { report: Report }) {
  const { t } = useTranslation("reports");
  const [{ run }] = useUrlState({ run: LATEST });
  const results = (
    <Stack gap="sm">
      <RunChoice job={report.job} run={run} hasPage={run !== LATEST || report.last_run !== null} />
      <Results report={report} run={run} />
    </Stack>
  );
  const sections = [
    { name: "results", label: t("tab.results"), view: results },
    { name: "runs", label: t("tab.runs"), view: <RunHistory job={report.job} /> },
  ];
  return <Sections sections={sections} />;
}

/** Which run is shown, and its page as HTML. */
function RunChoice({ job, run, hasPage }: { job: string; run: string; hasPage: boolean }) {
  const { t } = useTranslation("reports");
  const has = useOperations();
  const [, setUrl] = useUrlState({ tab: "results", run: LATEST });
  const page = fillPath("/v1/reports/{job}/runs/{run}/html", { job, run });
  return (
    <Group justify="space-between" gap="xs">
      <Group gap="xs">
        <Text size="sm">{run === LATEST ? t("run.latest") : t("run.one", { run })}</Text>
        {run !== LATEST && (
          <Button
            variant="subtle"
            size="compact-sm"
            onClick={() => {
              setUrl({ run: LATEST }, { push: true });
            }}
          >
            {t("run.toLatest")}
          </Button>
        )}
      </Group>
      {hasPage && has(["GET /v1/reports/{job}/runs/{run}/html"]) && (
        <Group gap="xs">
          <Button
            component="a"
            href={page}
            target="_blank"
            rel="noopener"
            variant="default"
            size="xs"
            leftSection={<IconExternalLink size={ICON_PX} />}
          >
            {t("page.open")}
          </Button>
          <Button
            component="a"
            href={page}
            download={`${job}-${run}.html`}
            variant="default"
            size="xs"
            leftSection={<IconDownload size={ICON_PX} />}
          >
            {t("page.download")}
          </Button>
          <CopyAs
            call={{ method: "GET", path: "/v1/reports/{job}/runs/{run}/html", values: { job, run } }}
            gantry={gantryCommand("report", "page", job, "--run", run, "--save", `${job}.html`)}
          />
        </Group>
      )}
    </Group>
  );
}

function Results({ report, run }: { report: Report; run: string }) {
  const { t } = useTranslation("reports");
  const last = report.last_run;
  const newest = last === null ? "" : `${last.id} ${last.status}`;
  if (report.job === "lag_report") return <LagRows key={run} run={run} newest={newest} />;
  if (report.job === "backlog_profile") return <BacklogRows key={run} run={run} newest={newest} />;
  if (report.job === "throughput_rollup") return <ThroughputRows newest={newest} />;
  return <Empty>{t("noRows")}</Empty>;
}
