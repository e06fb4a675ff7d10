import { Code, Stack, Text } from "@mantine/core";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { worstFirst, type LagRow } from "@/models/lag";
import { Panel } from "@/ui/dialog";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { Facts, type Fact } from "@/ui/facts";
import { useFormat } from "@/ui/format";
import { Empty, QueryState } from "@/ui/page-frame";
import { SearchField, useTyped } from "@/ui/typing";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name, Value } from "@/ui/value";
import { Verdict } from "@/ui/verdict";
import { useVerdictText } from "@/ui/verdict-text";
import { isWithoutRun, lagQueuesQuery, lagRowsQuery } from "./queries";
import { MoreRows } from "@/ui/paging";
import { RowsHead } from "./rows-head";

/** The groups of a lag report, the worst first. A row opens what is known about it, with the next step. */
export function LagRows({ run, newest }: { run: string; newest: string }) {
  const { t } = useTranslation("reports");
  const [url, setUrl] = useUrlState({ q: "", group: "", topic: "" });
  const search = useTyped(url.q, (q) => {
    setUrl({ q });
  });
  const query = useInfiniteQuery(lagRowsQuery(run, newest));
  const first = query.data?.pages[0];
  const rows = useMemo(() => worstFirst(query.data?.pages.flatMap((page) => page.items) ?? []), [query.data]);
  if (first === undefined && isWithoutRun(query.error)) return <Empty>{t("run.noneYet")}</Empty>;
  const word = search.text.toLowerCase();
  const found = rows.filter((row) => `${row.group} ${row.topic} ${row.verdict}`.toLowerCase().includes(word));
  const open = rows.find((row) => row.group === url.group && row.topic === url.topic);
  return (
    <QueryState query={query} isEmpty={() => rows.length === 0} empty={t("lag.none")}>
      {() => (
        <Stack gap="sm">
          <RowsHead
            asOf={first?.as_of ?? null}
            copy={
              <CopyAs
                call={{ method: "GET", path: "/v1/reports/lag_report/rows", query: { run } }}
                gantry={gantryCommand("report", "show", "lag_report", "--run", run)}
              />
            }
          >
            <SearchField size="xs" label={t("lag.search")} typed={search} />
          </RowsHead>
          {found.length === 0 ? (
            <Empty>{t("nothingFound")}</Empty>
          ) : (
            <LagTable
              rows={found}
              onOpen={(row) => {
                setUrl({ group: row.group, topic: row.topic }, { panel: "open" });
              }}
            />
          )}
          <MoreRows query={query} />
          <Panel
            opened={open !== undefined}
            onClose={() => {
              setUrl({ group: "", topic: "" }, { panel: "close" });
            }}
            size="xl"
            title={open && <Name>{`${open.group} · ${open.topic}`}</Name>}
          >
            {open !== undefined && first !== undefined && <LagDetails row={open} run={first.run} />}
          </Panel>
        </Stack>
      )}
    </QueryState>
  );
}

function LagTable({ rows, onOpen }: { rows: LagRow[]; onOpen: (row: LagRow) => void }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const textOf = useVerdictText();
  const columns: Column<LagRow>[] = [
    {
      key: "group",
      header: t("lag.group"),
      width: "minmax(8rem, 1fr)",
      sortBy: (row) => row.group,
      cell: (row) => (
        <button
          type="button"
          className="row-link cell-button"
          onClick={() => {
            onOpen(row);
          }}
        >
          <Name>{row.group}</Name>
        </button>
      ),
    },
    {
      key: "topic",
      header: t("lag.topic"),
      width: "minmax(7rem, 1fr)",
      sortBy: (row) => row.topic,
      cell: (row) => <Name>{row.topic}</Name>,
    },
    { key: "verdict", header: t("lag.verdict"), width: "10.5rem", cell: (row) => <Verdict verdict={row.verdict} /> },
    {
      key: "messages",
      header: t("lag.messages"),
      width: "7rem",
      align: "end",
      sortBy: (row) => row.lag_messages,
      cell: (row) => <Value reason={textOf(row.cause)}>{format.count(row.lag_messages)}</Value>,
    },
    {
      key: "seconds",
      header: t("lag.behind"),
      width: "7rem",
      align: "end",
      sortBy: (row) => row.lag_seconds,
      cell: (row) => <Value reason={textOf(row.cause)}>{format.duration(row.lag_seconds)}</Value>,
    },
    {
      key: "drain",
      header: t("lag.drain"),
      width: "7rem",
      align: "end",
      sortBy: (row) => row.drain_eta_s,
      cell: (row) => <Value>{format.duration(row.drain_eta_s)}</Value>,
    },
    {
      key: "cause",
      header: t("lag.cause"),
      width: "minmax(15rem, 2.4fr)",
      cell: (row) => textOf(row.cause) ?? t("lag.noCause"),
    },
  ];
  return (
    <DataTable
      label={t("lag.title")}
      rows={rows}
      columns={columns}
      rowKey={(row) => JSON.stringify([row.group, row.topic])}
      onOpen={onOpen}
    />
  );
}

function LagDetails({ row, run }: { row: LagRow; run: string }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const textOf = useVerdictText();
  const interval =
    row.drain_eta_low_s === null
      ? null
      : row.drain_eta_high_s === null
        ? t("lag.atLeast", { low: format.duration(row.drain_eta_low_s) })
        : t("lag.between", {
            low: format.duration(row.drain_eta_low_s),
            high: format.duration(row.drain_eta_high_s),
          });
  const facts: Fact[] = [
    [t("lag.messages"), <Value key="messages">{format.count(row.lag_messages)}</Value>],
    [t("lag.behind"), <Value key="behind">{format.duration(row.lag_seconds)}</Value>],
    [t("lag.since"), <Value key="since">{format.time(row.behind_since)}</Value>],
    [t("lag.in"), <Value key="in">{format.rate(row.in_rate)}</Value>],
    [t("lag.out"), <Value key="out">{format.rate(row.out_rate)}</Value>],
    [t("lag.drain"), <Value key="drain">{format.duration(row.drain_eta_s)}</Value>],
    [t("lag.interval"), <Value key="interval">{interval}</Value>],
    [t("lag.retention"), <Value key="retention">{format.duration(row.retention_left_s)}</Value>],
    [t("lag.clients"), <Value key="clients">{format.count(row.clients)}</Value>],
    [t("lag.asOf"), <Ago key="asOf" time={row.as_of} />],
  ];
  return (
    <Stack gap="md">
      <div>
        <Verdict verdict={row.verdict} />
      </div>
      {row.cause !== null && (
        <Text size="sm" style={{ overflowWrap: "anywhere" }}>
          {textOf(row.cause)}
        </Text>
      )}
      {row.next_step !== null && (
        <div>
          <Text size="xs" c="dimmed">
            {t("lag.nextStep")}
          </Text>
          <Text size="sm" fw={500} style={{ overflowWrap: "anywhere" }}>
            {textOf(row.next_step)}
          </Text>
        </div>
      )}
      <Facts facts={facts} />
      <LagQueues row={row} run={run} />
      {row.evidence !== null && (
        <div>
          <Text size="sm" c="dimmed" mb={4}>
            {t("lag.evidence")}
          </Text>
          <Code block tabIndex={0} aria-label={t("lag.evidence")}>
            {JSON.stringify(row.evidence, null, 2)}
          </Code>
        </div>
      )}
    </Stack>
  );
}

function LagQueues({ row, run }: { row: LagRow; run: string }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const textOf = useVerdictText();
  const query = useQuery(lagQueuesQuery(run, row.group, row.topic));
  const columns: Column<LagRow>[] = [
    {
      key: "queue",
      header: t("lag.queue"),
      cell: (each) => <Name>{`${each.broker ?? ""} / ${each.queue_id ?? ""}`}</Name>,
    },
    {
      key: "messages",
      header: t("lag.messages"),
      width: "6rem",
      align: "end",
      sortBy: (each) => each.lag_messages,
      cell: (each) => <Value reason={textOf(each.cause)}>{format.count(each.lag_messages)}</Value>,
    },
    {
      key: "seconds",
      header: t("lag.behind"),
      width: "7rem",
      align: "end",
      sortBy: (each) => each.lag_seconds,
      cell: (each) => <Value reason={textOf(each.cause)}>{format.duration(each.lag_seconds)}</Value>,
    },
    {
      key: "owner",
      header: t("lag.owner"),
      cell: (each) => <Value>{each.owners?.map((owner) => owner.client_id).join(", ") || null}</Value>,
    },
  ];
  return (
    <QueryState query={query} isEmpty={(data) => data.items.length === 0} empty={t("lag.noQueues")}>
      {(data) => (
        <DataTable
          label={t("lag.queues")}
          rows={data.items}
          columns={columns}
          rowKey={(each) => `${each.broker ?? ""}/${each.queue_id ?? ""}`}
        />
      )}
    </QueryState>
  );
}
