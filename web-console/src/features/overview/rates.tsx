import { Group, Skeleton, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import type { RatePoint } from "@/models/throughput";
import { useFormat } from "@/ui/format";
import { QueryState } from "@/ui/page-frame";
import { Sparkline } from "@/ui/sparkline";
import { Value } from "@/ui/value";
import { ratesQuery } from "./queries";

const CHART_PX = 124;
const STORED = "light-dark(#0b7285, #4bc2d6)";
const CONSUMED = "light-dark(#9c36b5, #da77f2)";

/** Messages stored and consumed in the last hour, by the minute. */
export function Rates() {
  const { t } = useTranslation("overview");
  const query = useQuery(ratesQuery);
  return (
    <QueryState
      query={query}
      loading={<Skeleton height={CHART_PX} radius="sm" />}
      isEmpty={(points) => points.length < 2}
      empty={t("rates.none")}
    >
      {(points) => <Chart points={points} />}
    </QueryState>
  );
}

function Chart({ points }: { points: RatePoint[] }) {
  const { t } = useTranslation("overview");
  const format = useFormat();
  const last = points.at(-1);
  const lines = [
    { name: t("rates.stored"), color: STORED, values: points.map((point) => point.stored), now: last?.stored ?? null },
    {
      name: t("rates.consumed"),
      color: CONSUMED,
      values: points.map((point) => point.consumed),
      now: last?.consumed ?? null,
    },
  ];
  return (
    <div className="panel" style={{ padding: 14 }}>
      <Group gap="lg" mb={8}>
        {lines.map((line) => (
          <Group key={line.name} gap={6}>
            <span aria-hidden style={{ width: 12, height: 3, background: line.color, borderRadius: 2 }} />
            <Text size="sm">{line.name}</Text>
            <Text size="sm" fw={600} component="span">
              <Value unit={t("perSecond")}>{format.rate(line.now)}</Value>
            </Text>
          </Group>
        ))}
      </Group>
      <Sparkline
        label={lines
          .map((line) => `${line.name}: ${format.rate(line.now) ?? t("common:unknown")} ${t("perSecond")}`)
          .join(", ")}
        lines={lines}
      />
    </div>
  );
}
