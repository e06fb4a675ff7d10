import { Button, Group, Stack, Text } from "@mantine/core";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { isActive, LATEST, tookSeconds, type ReportRun } from "@/models/reports";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { useNow } from "@/ui/now";
import { QueryState } from "@/ui/page-frame";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name, Value } from "@/ui/value";
import { MoreRows } from "@/ui/paging";
import { runsQuery } from "./queries";
import { RunProgress, RunStatus } from "./run-state";

/** All runs of a job, newest first, with the reason of each failure. A run that succeeded opens its rows. */
export function RunHistory({ job }: { job: string }) {
  const { t } = useTranslation("reports");
  const query = useInfiniteQuery(runsQuery(job));
  const runs = query.data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <QueryState query={query} isEmpty={() => runs.length === 0} empty={t("run.never")}>
      {() => (
        <Stack gap="sm">
          <Group justify="flex-end">
            <CopyAs
              call={{ method: "GET", path: "/v1/reports/{job}/runs", values: { job } }}
              gantry={gantryCommand("report", "runs", job)}
            />
          </Group>
          <RunTable runs={runs} />
          <MoreRows query={query} label={t("run.older")} />
        </Stack>
      )}
    </QueryState>
  );
}

function RunTable({ runs }: { runs: ReportRun[] }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const now = useNow();
  const [, setUrl] = useUrlState({ tab: "results", run: LATEST });
  const open = (run: ReportRun) => {
    setUrl({ tab: "results", run: run.id }, { push: true });
  };
  const columns: Column<ReportRun>[] = [
    {
      key: "created",
      header: t("run.created"),
      width: "9rem",
      cell: (row) => <Ago time={row.created_at} />,
      sortBy: (row) => row.created_at,
    },
    {
      key: "status",
      header: t("run.status"),
      width: "8rem",
      cell: (row) => <RunStatus run={row} />,
      sortBy: (row) => row.status,
    },
    { key: "trigger", header: t("run.trigger"), width: "8rem", cell: (row) => t(`trigger.${row.trigger}`) },
    {
      key: "took",
      header: t("run.took"),
      width: "7rem",
      align: "end",
      cell: (row) => format.duration(tookSeconds(row, now)) ?? t("run.notStarted"),
      sortBy: (row) => row.duration_ms,
    },
    {
      key: "rows",
      header: t("run.rows"),
      width: "7rem",
      align: "end",
      cell: (row) => (row.rows === null ? t("run.noRows") : <Value>{format.count(row.rows)}</Value>),
      sortBy: (row) => row.rows,
    },
    {
      key: "window",
      header: t("run.window"),
      width: "minmax(14rem, 1.2fr)",
      cell: (row) =>
        row.window === null
          ? t("run.present")
          : t("run.period", { from: format.time(row.window.from), to: format.time(row.window.to) }),
    },
    {
      key: "detail",
      header: t("run.detail"),
      width: "minmax(14rem, 2fr)",
      cell: (row) =>
        isActive(row) ? (
          <RunProgress run={row} />
        ) : row.status === "succeeded" ? (
          <Button
            variant="subtle"
            size="compact-sm"
            onClick={() => {
              open(row);
            }}
          >
            {t("run.open")}
          </Button>
        ) : (
          <Text span inherit style={{ overflowWrap: "anywhere" }}>
            {row.error === null ? t("run.noReason") : <Name>{row.error}</Name>}
            {row.attempt > 1 && ` · ${t("run.attempt", { attempt: row.attempt })}`}
          </Text>
        ),
    },
  ];
  return (
    <DataTable
      label={t("tab.runs")}
      rows={runs}
      columns={columns}
      rowKey={(row) => row.id}
      onOpen={open}
      canOpen={(row) => row.status === "succeeded"}
    />
  );
}
