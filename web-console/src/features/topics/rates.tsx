import { useQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { useTranslation } from "react-i18next";
import type { RatePoint } from "@/models/throughput";
import { LazyChart } from "@/ui/lazy-chart";
import { QueryState } from "@/ui/page-frame";
import { ratesQuery } from "./queries";

/** Messages stored in the topic and consumed from it, by the minute. */
export function Rates({ topic }: { topic: string }) {
  const { t } = useTranslation("topics");
  const query = useQuery(ratesQuery(topic));
  return (
    <QueryState query={query} isEmpty={(points) => points.length === 0} empty={t("rates.none")}>
      {(points) => <RatesChart points={points} />}
    </QueryState>
  );
}

function RatesChart({ points }: { points: RatePoint[] }) {
  const { t } = useTranslation("topics");
  const option = useMemo(() => {
    const line = (name: string, color: string, values: (number | null)[]) => ({
      name,
      type: "line",
      showSymbol: points.length < 3,
      connectNulls: false,
      itemStyle: { color },
      data: points.map((point, at) => [point.at, values[at] ?? null]),
    });
    return {
      grid: { left: 56, right: 16, top: 40, bottom: 28 },
      legend: { top: 4, left: 8 },
      tooltip: { trigger: "axis" },
      xAxis: { type: "time" },
      yAxis: { type: "value", min: 0, name: t("perSecond") },
      series: [
        line(
          t("rates.stored"),
          "#108fa4",
          points.map((point) => point.stored),
        ),
        line(
          t("rates.consumed"),
          "#be4bdb",
          points.map((point) => point.consumed),
        ),
      ],
    };
  }, [points, t]);
  return (
    <div className="panel" style={{ padding: 8 }}>
      <LazyChart label={t("rates.label")} option={option} />
    </div>
  );
}
