import { Button, Code, Group, Progress, Select, Stack, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { isActive, shareDone, tookSeconds, type Job } from "@/models/jobs";
import { Panel } from "@/ui/dialog";
import { useConfirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { useNow } from "@/ui/now";
import { PageFrame, QueryState } from "@/ui/page-frame";
import { Problem } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name, Value } from "@/ui/value";
import { MoreRows } from "@/ui/paging";
import { cancelJob, jobsQuery, keys } from "./queries";

const STATES = ["queued", "running", "done", "failed", "cancelled"] as const;

/** Long work of the gateways: progress, outcome, and the way to end it. */
export function JobsPage() {
  const { t } = useTranslation("jobs");
  const [{ state, job }, change] = useUrlState({ state: "", job: "" });
  const query = useInfiniteQuery(jobsQuery(state));
  const jobs = query.data?.pages.flatMap((page) => page.items) ?? [];
  const open = jobs.find((each) => each.job === job);
  return (
    <PageFrame
      title={t("title")}
      description={t("description")}
      actions={
        <Select
          label={t("state")}
          placeholder={t("anyState")}
          clearable
          data={STATES.map((value) => ({ value, label: t(`states.${value}`) }))}
          value={state || null}
          onChange={(value) => {
            change({ state: value ?? "" });
          }}
        />
      }
    >
      <QueryState query={query} isEmpty={() => jobs.length === 0} empty={state === "" ? t("none") : t("noneLike")}>
        {() => (
          <Stack gap="sm">
            <JobTable
              jobs={jobs}
              onOpen={(row) => {
                change({ job: row.job }, { panel: "open" });
              }}
            />
            <MoreRows query={query} label={t("more")} />
          </Stack>
        )}
      </QueryState>
      <Panel
        opened={open !== undefined}
        onClose={() => {
          change({ job: "" }, { panel: "close" });
        }}
        size="lg"
        title={open && `${open.kind} · ${open.job}`}
      >
        {open && <Details job={open} />}
      </Panel>
    </PageFrame>
  );
}

function JobTable({ jobs, onOpen }: { jobs: Job[]; onOpen: (job: Job) => void }) {
  const { t } = useTranslation("jobs");
  const format = useFormat();
  const now = useNow();
  const columns: Column<Job>[] = [
    { key: "kind", header: t("kind"), width: "8rem", cell: (row) => row.kind, sortBy: (row) => row.kind },
    {
      key: "state",
      header: t("state"),
      width: "8rem",
      cell: (row) => <StateText job={row} />,
      sortBy: (row) => row.state,
    },
    { key: "progress", header: t("progress"), width: "minmax(14rem, 1.5fr)", cell: (row) => <Done job={row} /> },
    {
      key: "failed",
      header: t("failed"),
      width: "7rem",
      align: "end",
      cell: (row) => <Value>{format.count(row.failed)}</Value>,
      sortBy: (row) => row.failed,
    },
    {
      key: "took",
      header: t("took"),
      width: "8rem",
      align: "end",
      cell: (row) => format.duration(tookSeconds(row, now)) ?? t("notYet"),
    },
    { key: "by", header: t("by"), cell: (row) => <Name>{row.created_by}</Name>, sortBy: (row) => row.created_by },
    {
      key: "created",
      header: t("created"),
      width: "9rem",
      cell: (row) => <Ago time={row.created_at} />,
      sortBy: (row) => row.created_at,
    },
    {
      key: "job",
      header: t("job"),
      cell: (row) => (
        <Button
          variant="subtle"
          size="compact-sm"
          onClick={() => {
            onOpen(row);
          }}
        >
          {row.job}
        </Button>
      ),
    },
  ];
  return <DataTable label={t("title")} rows={jobs} columns={columns} rowKey={(row) => row.job} onOpen={onOpen} />;
}

function StateText({ job }: { job: Job }) {
  const { t } = useTranslation("jobs");
  const text = job.cancel_requested && isActive(job) ? t("cancelAsked") : t(`states.${job.state}`);
  return (
    <Text span inherit c={job.state === "failed" ? "red" : "inherit"}>
      {text}
    </Text>
  );
}

function Done({ job }: { job: Job }) {
  const { t } = useTranslation("jobs");
  const format = useFormat();
  const share = shareDone(job);
  const done = format.count(job.done);
  if (share === null) return <span>{t("ofUnknown", { done })}</span>;
  return (
    <Group gap={8} wrap="nowrap">
      <Progress value={share * 100} w={80} color={job.failed > 0 ? "orange" : "teal"} aria-label={t("progress")} />
      <span>{t("of", { done, total: format.count(job.total) })}</span>
    </Group>
  );
}

function Details({ job }: { job: Job }) {
  const { t } = useTranslation("jobs");
  const format = useFormat();
  const facts: [string, React.ReactNode][] = [
    [t("state"), <StateText key="state" job={job} />],
    [t("progress"), <Done key="done" job={job} />],
    [t("failed"), <Value key="failed">{format.count(job.failed)}</Value>],
    [t("by"), <Name key="by">{job.created_by}</Name>],
    [t("created"), format.time(job.created_at)],
    [t("started"), format.time(job.started_at) ?? t("notYet")],
    [t("ended"), format.time(job.ended_at) ?? t("notYet")],
  ];
  return (
    <Stack gap="md">
      <Stack gap={6} component="dl" m={0}>
        {facts.map(([label, value]) => (
          <Group key={label} gap="sm" wrap="nowrap" align="baseline">
            <Text component="dt" size="sm" c="dimmed" w={110}>
              {label}
            </Text>
            <Text component="dd" size="sm" m={0}>
              {value}
            </Text>
          </Group>
        ))}
      </Stack>
      {job.error !== null && (
        <Text size="sm" style={{ overflowWrap: "anywhere" }}>
          {t("error")}: <Name>{job.error}</Name>
        </Text>
      )}
      <Text size="sm" c="dimmed">
        {t("arguments")}
      </Text>
      <Code block tabIndex={0} aria-label={t("arguments")}>
        {JSON.stringify(job.arguments, null, 2)}
      </Code>
      <Cancel job={job} />
    </Stack>
  );
}

function Cancel({ job }: { job: Job }) {
  const { t } = useTranslation("jobs");
  const has = useOperations();
  const isOperator = useRole("operator");
  const confirm = useConfirm();
  const client = useQueryClient();
  const cancel = useMutation({
    mutationFn: () => cancelJob(job.job),
    onSuccess: () => {
      notifications.show({ message: t("cancelled") });
      void client.invalidateQueries({ queryKey: keys.all });
    },
  });
  if (!isActive(job) || !isOperator || !has(["POST /v1/jobs/{job}:cancel"])) return null;
  const ask = async () => {
    const effects = [t("cancelEffect", { done: job.done })];
    const title = t("cancelTitle", { job: job.job });
    if (await confirm({ title, effects, action: t("cancel"), isDangerous: true })) cancel.mutate();
  };
  return (
    <Stack gap="xs">
      {cancel.error !== null && <Problem error={cancel.error} />}
      <Group>
        <Button
          color="red"
          variant="light"
          loading={cancel.isPending}
          disabled={job.cancel_requested}
          onClick={() => void ask()}
        >
          {t("cancel")}
        </Button>
        <CopyAs
          call={{ method: "POST", path: "/v1/jobs/{job}:cancel", values: { job: job.job } }}
          gantry={gantryCommand("job", "cancel", job.job)}
        />
      </Group>
    </Stack>
  );
}
