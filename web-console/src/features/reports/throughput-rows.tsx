import { NativeSelect, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { isLowerBound, UNITS, type Bucket } from "@/models/reports";
import { toRates } from "@/models/throughput";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { LazyChart } from "@/ui/lazy-chart";
import { QueryState } from "@/ui/page-frame";
import { AddressField } from "@/ui/typing";
import { useUrlState } from "@/ui/url-state";
import { Name, Value } from "@/ui/value";
import { throughputQuery, type BucketsRead } from "./queries";
import { RowsHead } from "./rows-head";

/** Messages stored and consumed over time, as a chart and as rows. The buckets belong to no run. */
export function ThroughputRows({ newest }: { newest: string }) {
  const { t } = useTranslation("reports");
  const [{ unit, topic }, setUrl] = useUrlState({ unit: "hour", topic: "" });
  const query = useQuery(throughputQuery(unit, topic, newest));
  return (
    <Stack gap="sm">
      <RowsHead
        asOf={null}
        copy={
          <CopyAs
            call={{ method: "GET", path: "/v1/reports/throughput_rollup/rows", query: { unit, topic } }}
            gantry={gantryCommand(
              "report",
              "show",
              "throughput_rollup",
              "--unit",
              unit,
              ...(topic === "" ? [] : ["--topic", topic]),
            )}
          />
        }
      >
        <NativeSelect
          size="xs"
          label={t("throughput.unit")}
          data={UNITS.map((value) => ({ value, label: t(`unit.${value}`) }))}
          value={unit}
          onChange={(event) => {
            setUrl({ unit: event.currentTarget.value });
          }}
        />
        <AddressField
          size="xs"
          label={t("throughput.topic")}
          placeholder={t("throughput.allTopics")}
          autoComplete="off"
          value={topic}
          onKeep={(kept) => {
            setUrl({ topic: kept });
          }}
        />
      </RowsHead>
      <QueryState query={query} isEmpty={(data) => data.buckets.length === 0} empty={t("throughput.none")}>
        {(data) => (
          <Stack gap="sm">
            {data.isCut && (
              <Text size="sm" c="dimmed">
                {t("throughput.cut")}
              </Text>
            )}
            <RatesChart data={data} />
            <BucketTable buckets={data.buckets} unit={unit} />
          </Stack>
        )}
      </QueryState>
    </Stack>
  );
}

function RatesChart({ data }: { data: BucketsRead }) {
  const { t } = useTranslation("reports");
  const option = useMemo(() => {
    const points = toRates(data.buckets);
    const line = (name: string, color: string, which: "stored" | "consumed") => ({
      name,
      type: "line",
      showSymbol: points.length < 3,
      connectNulls: false,
      itemStyle: { color },
      data: points.map((point) => [point.at, point[which]]),
    });
    return {
      grid: { left: 56, right: 16, top: 40, bottom: 28 },
      legend: { top: 4, left: 8 },
      tooltip: { trigger: "axis" },
      xAxis: { type: "time" },
      yAxis: { type: "value", min: 0, name: t("throughput.perSecond") },
      series: [
        line(t("throughput.stored"), "#108fa4", "stored"),
        line(t("throughput.consumed"), "#be4bdb", "consumed"),
      ],
    };
  }, [data, t]);
  return (
    <div className="panel" style={{ padding: 8 }}>
      <LazyChart label={t("throughput.label")} option={option} />
    </div>
  );
}

function BucketTable({ buckets, unit }: { buckets: readonly Bucket[]; unit: string }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const newestFirst = useMemo(() => [...buckets].reverse(), [buckets]);
  const messages = (row: Bucket) => {
    const count = format.count(row.messages);
    return count !== null && isLowerBound(row, unit) ? t("throughput.atLeast", { count }) : count;
  };
  const columns: Column<Bucket>[] = [
    {
      key: "at",
      header: t("throughput.at"),
      width: "13rem",
      cell: (row) => format.time(row.bucket_at),
      sortBy: (row) => row.bucket_at,
    },
    { key: "topic", header: t("lag.topic"), cell: (row) => <Name>{row.topic}</Name>, sortBy: (row) => row.topic },
    {
      key: "group",
      header: t("throughput.what"),
      cell: (row) => (row.group === null ? t("throughput.storedIn") : <Name>{row.group}</Name>),
      sortBy: (row) => row.group ?? "",
    },
    {
      key: "messages",
      header: t("throughput.messages"),
      align: "end",
      cell: (row) => <Value>{messages(row)}</Value>,
      sortBy: (row) => row.messages,
    },
    {
      key: "rate",
      header: t("throughput.rateMax"),
      align: "end",
      cell: (row) => <Value>{format.rate(row.rate_max)}</Value>,
      sortBy: (row) => row.rate_max,
    },
    {
      key: "lag",
      header: t("throughput.lag"),
      align: "end",
      cell: (row) => (row.group === null ? "" : <Value>{format.count(row.lag_messages)}</Value>),
      sortBy: (row) => row.lag_messages,
    },
    {
      key: "covered",
      header: t("throughput.covered"),
      align: "end",
      cell: (row) => <Value>{format.duration(row.covered_s)}</Value>,
      sortBy: (row) => row.covered_s,
    },
  ];
  return (
    <DataTable
      label={t("throughput.title")}
      rows={newestFirst}
      columns={columns}
      rowKey={(row) => JSON.stringify([row.bucket_at, row.topic, row.group])}
    />
  );
}
