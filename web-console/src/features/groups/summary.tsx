import { Button, Group as Row, SimpleGrid, Stack, Text, Title } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useMemo, type ReactNode } from "react";
import { useTranslation } from "react-i18next";
import type { Schema } from "@/api/types";
import { trendOf } from "@/models/groups";
import type { LagRow } from "@/models/lag";
import { useFormat } from "@/ui/format";
import { LazyChart } from "@/ui/lazy-chart";
import { QueryState } from "@/ui/page-frame";
import { useOperations } from "@/ui/session";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name, Value } from "@/ui/value";
import { Verdict } from "@/ui/verdict";
import { useVerdictText } from "@/ui/verdict-text";
import { groupLagQuery, historyQuery } from "./queries";
import { Trend } from "./trend";

/** How late the group is on each of its topics, why, and what to do; by the latest lag report. */
export function Summary({ group }: { group: string }) {
  const { t } = useTranslation("groups");
  const query = useQuery(groupLagQuery(group));
  return (
    <QueryState
      query={query}
      isEmpty={(data) => data === null || data.topics.length === 0}
      empty={query.data === null ? t("summary.noReport") : t("notInReport")}
    >
      {(data) => (
        <Stack gap="sm">
          <Text size="xs" c="dimmed">
            {t("asOf")} <Ago time={data?.asOf} />
          </Text>
          {data?.topics.map((row) => (
            <TopicCard key={row.topic} row={row} />
          ))}
        </Stack>
      )}
    </QueryState>
  );
}

function TopicCard({ row }: { row: LagRow }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  const textOf = useVerdictText();
  const has = useOperations();
  const [url, setUrl] = useUrlState({ history: "" });
  const isOpen = url.history === row.topic;
  return (
    <Stack component="section" className="panel" p="md" gap="sm" aria-label={row.topic}>
      <Row justify="space-between" gap="xs">
        <Row gap="sm" miw={0}>
          <Verdict verdict={row.verdict} />
          <Title order={2}>
            <Link to="/topics/$topic" params={{ topic: row.topic }} className="row-link">
              <Name>{row.topic}</Name>
            </Link>
          </Title>
        </Row>
        {has(["GET /v1/reports/lag_report/history"]) && (
          <Button
            size="compact-xs"
            variant="default"
            aria-expanded={isOpen}
            onClick={() => {
              setUrl({ history: isOpen ? "" : row.topic });
            }}
          >
            {t("history.open")}
          </Button>
        )}
      </Row>
      {row.cause !== null && <Sentence label={t("cause")}>{textOf(row.cause)}</Sentence>}
      {row.next_step !== null && <Sentence label={t("nextStep")}>{textOf(row.next_step)}</Sentence>}
      <SimpleGrid component="dl" cols={{ base: 2, sm: 3, lg: 6 }} spacing="sm" m={0}>
        <Fact label={t("lag.messages")}>
          <Value reason={textOf(row.cause)}>{format.count(row.lag_messages)}</Value>
        </Fact>
        <Fact label={t("lag.seconds")}>
          <Value reason={textOf(row.cause)}>{format.duration(row.lag_seconds)}</Value>
        </Fact>
        <Fact label={t("rates")}>
          <Value>{format.rate(row.in_rate)}</Value> / <Value unit={t("perSecond")}>{format.rate(row.out_rate)}</Value>
        </Fact>
        <Fact label={t("trend.title")}>
          <Trend perSecond={trendOf(row)} />
        </Fact>
        <Fact label={t("drain.title")}>
          <Drain row={row} />
        </Fact>
        <Fact label={t("retention")}>
          <Value>{format.duration(row.retention_left_s)}</Value>
        </Fact>
      </SimpleGrid>
      {isOpen && <History group={row.group} topic={row.topic} />}
    </Stack>
  );
}

function Sentence({ label, children }: { label: string; children: ReactNode }) {
  return (
    <Text size="sm" style={{ overflowWrap: "anywhere" }}>
      <Text span inherit c="dimmed">
        {label}:{" "}
      </Text>
      {children}
    </Text>
  );
}

function Fact({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div>
      <Text component="dt" size="xs" c="dimmed">
        {label}
      </Text>
      <Text component="dd" size="sm" fw={600} m={0}>
        {children}
      </Text>
    </div>
  );
}

/** When the backlog will be consumed: a forecast, and the interval in which nine of ten backlogs end. */
function Drain({ row }: { row: LagRow }) {
  const { t } = useTranslation("groups");
  const format = useFormat();
  const textOf = useVerdictText();
  const reason = row.evidence?.drain_unknown;
  if (row.drain_eta_s === null)
    return <Value reason={typeof reason === "string" ? textOf(reason) : null}>{null}</Value>;
  const low = format.duration(row.drain_eta_low_s);
  const high = format.duration(row.drain_eta_high_s);
  return (
    <>
      {format.duration(row.drain_eta_s)}
      {row.drain_eta_s > 0 && (
        <Text size="xs" c="dimmed">
          {low === null
            ? t("drain.noInterval")
            : high === null
              ? t("drain.open", { low })
              : t("drain.between", { low, high })}
        </Text>
      )}
    </>
  );
}

function History({ group, topic }: { group: string; topic: string }) {
  const { t } = useTranslation("groups");
  const query = useQuery(historyQuery(group, topic));
  return (
    <QueryState query={query} isEmpty={(points) => points.length === 0} empty={t("history.none")}>
      {(points) => <HistoryChart points={points} />}
    </QueryState>
  );
}

function HistoryChart({ points }: { points: Schema<"LagPoint">[] }) {
  const { t } = useTranslation("groups");
  const option = useMemo(() => {
    const line = (name: string, color: string, axis: number, values: (number | null)[]) => ({
      name,
      type: "line",
      yAxisIndex: axis,
      showSymbol: points.length < 3,
      connectNulls: false,
      itemStyle: { color },
      data: points.map((point, at) => [point.at, values[at] ?? null]),
    });
    return {
      grid: { left: 64, right: 64, top: 40, bottom: 28 },
      legend: { top: 4, left: 8 },
      tooltip: { trigger: "axis" },
      xAxis: { type: "time" },
      yAxis: [
        { type: "value", min: 0, name: t("history.messages") },
        { type: "value", min: 0, name: t("history.seconds"), splitLine: { show: false } },
      ],
      series: [
        line(
          t("lag.messages"),
          "#108fa4",
          0,
          points.map((point) => point.lag_messages),
        ),
        line(
          t("lag.seconds"),
          "#be4bdb",
          1,
          points.map((point) => point.lag_seconds),
        ),
      ],
    };
  }, [points, t]);
  return <LazyChart label={t("history.label")} option={option} height={220} />;
}
