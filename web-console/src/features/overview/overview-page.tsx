import { Group, Progress, SimpleGrid, Skeleton, Stack, Text, Title } from "@mantine/core";
import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { useTranslation } from "react-i18next";
import type { LagReport } from "@/api/lag";
import type { BrokerSummary, ClusterSummary } from "@/models/cluster";
import { isBad, type LagRow } from "@/models/lag";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { Empty, PageFrame, QueryState } from "@/ui/page-frame";
import { useOperations, useRole } from "@/ui/session";
import { Ago, Name, Value } from "@/ui/value";
import { Verdict } from "@/ui/verdict";
import { useVerdictText } from "@/ui/verdict-text";
import { changesQuery, clusterQuery, lagQuery } from "./queries";
import { Rates } from "./rates";

const WORST_SHOWN = 8;
const DISK_FULL = 0.9;
const DISK_HIGH = 0.75;
const FIGURES = 4;
// The height of a figure with two lines, as the one of the brokers.
const FIGURE_PX = 101;
const FIGURE_COLUMNS = { base: 2, md: 4 };

/** Health in one screen: what is wrong, how much flows, which groups are late, brokers and disks, recent changes. */
export function OverviewPage() {
  const { t } = useTranslation("overview");
  const has = useOperations();
  const isAdmin = useRole("admin");
  const cluster = useQuery(clusterQuery);
  const lag = useQuery({ ...lagQuery, enabled: has(["GET /v1/reports/lag_report/rows"]) });
  return (
    <PageFrame title={t("title")} description={t("description")}>
      <QueryState query={cluster} loading={<HealthSkeleton />}>
        {(data) => <Health cluster={data} lag={lag.data ?? null} />}
      </QueryState>
      {has(["GET /v1/reports/throughput_rollup/rows"]) && (
        <Section title={t("rates.title")}>
          <Rates />
        </Section>
      )}
      {has(["GET /v1/reports/lag_report/rows"]) && (
        <Section title={t("groups.title")} note={lag.data ? <AsOf time={lag.data.asOf} /> : undefined}>
          <WorstGroups query={lag} />
        </Section>
      )}
      <Section title={t("brokers.title")}>
        <QueryState query={cluster} isEmpty={(data) => data.brokers.length === 0} empty={t("brokers.none")}>
          {(data) => <Brokers brokers={data.brokers} />}
        </QueryState>
      </Section>
      {isAdmin && has(["GET /v1/audit"]) && (
        <Section title={t("changes.title")}>
          <Changes />
        </Section>
      )}
    </PageFrame>
  );
}

function Section({ title, note, children }: { title: string; note?: ReactNode; children: ReactNode }) {
  return (
    <Stack component="section" gap="xs" aria-label={title}>
      <Group justify="space-between">
        <Title order={2}>{title}</Title>
        {note}
      </Group>
      {children}
    </Stack>
  );
}

function AsOf({ time }: { time: string }) {
  const { t } = useTranslation("overview");
  return (
    <Text size="xs" c="dimmed">
      {t("asOf")} <Ago time={time} />
    </Text>
  );
}

function HealthSkeleton() {
  return (
    <SimpleGrid cols={FIGURE_COLUMNS} spacing="sm">
      {Array.from({ length: FIGURES }, (_, figure) => (
        <Skeleton key={figure} height={FIGURE_PX} radius="sm" />
      ))}
    </SimpleGrid>
  );
}

function Health({ cluster, lag }: { cluster: ClusterSummary; lag: LagReport | null }) {
  const { t } = useTranslation("overview");
  const format = useFormat();
  const bad = lag?.rows.filter((row) => isBad(row.verdict)).length ?? null;
  const isWell = cluster.unreachable.length === 0 && cluster.metadata === "available";
  const reachable = cluster.brokers.filter((broker) => broker.isReachable).length;
  return (
    <SimpleGrid cols={FIGURE_COLUMNS} spacing="sm">
      <Figure label={t("health.title")}>
        <span className="health" data-trouble={isWell ? undefined : ""}>
          {isWell ? t("health.well") : t("health.trouble")}
        </span>
        {!isWell && (
          <Text size="xs" mt={4} style={{ overflowWrap: "anywhere" }}>
            {[...cluster.unreachable, ...(cluster.metadata === "available" ? [] : ["Postgres"])].join(", ")}
          </Text>
        )}
      </Figure>
      <Figure label={t("health.in")}>
        <Big>
          <Value unit={t("perSecond")} reason={t("health.inUnknown")}>
            {format.rate(cluster.putRate)}
          </Value>
        </Big>
      </Figure>
      <Figure label={t("health.bad")}>
        <Big>
          <Value reason={t("groups.none")}>{format.count(bad)}</Value>
        </Big>
      </Figure>
      <Figure label={t("health.brokers")}>
        <Big>{`${reachable} / ${cluster.brokers.length}`}</Big>
        <Text size="xs" c="dimmed">
          {t("health.disk")} <Value>{format.share(cluster.diskShareMax)}</Value>
        </Text>
      </Figure>
    </SimpleGrid>
  );
}

function Figure({ label, children }: { label: string; children: ReactNode }) {
  return (
    <div className="panel" style={{ padding: 14 }}>
      <Text size="xs" c="dimmed" mb={4}>
        {label}
      </Text>
      {children}
    </div>
  );
}

function Big({ children }: { children: ReactNode }) {
  return (
    <Text component="div" fz={22} fw={600} lh={1.3}>
      {children}
    </Text>
  );
}

function WorstGroups({ query }: { query: UseQueryResult<LagReport | null> }) {
  const { t } = useTranslation("overview");
  const format = useFormat();
  const textOf = useVerdictText();
  const columns: Column<LagRow>[] = [
    {
      key: "verdict",
      header: t("groups.verdict"),
      width: "minmax(9rem, 0.7fr)",
      cell: (row) => <Verdict verdict={row.verdict} />,
    },
    { key: "group", header: t("groups.group"), cell: (row) => <Name>{row.group}</Name> },
    { key: "topic", header: t("groups.topic"), cell: (row) => <Name>{row.topic}</Name> },
    {
      key: "messages",
      header: t("groups.messages"),
      align: "end",
      width: "8rem",
      cell: (row) => <Value reason={textOf(row.cause)}>{format.count(row.lag_messages)}</Value>,
    },
    {
      key: "seconds",
      header: t("groups.seconds"),
      align: "end",
      width: "8rem",
      cell: (row) => <Value reason={textOf(row.cause)}>{format.duration(row.lag_seconds)}</Value>,
    },
    { key: "cause", header: t("groups.cause"), width: "minmax(16rem, 2fr)", cell: (row) => textOf(row.cause) ?? "" },
  ];
  return (
    <QueryState query={query}>
      {(data) => {
        if (data === null) return <Empty>{t("groups.none")}</Empty>;
        if (data.rows.length === 0) return <Empty>{t("groups.empty")}</Empty>;
        const worst = data.rows.filter((row) => isBad(row.verdict)).slice(0, WORST_SHOWN);
        if (worst.length === 0) return <Empty>{t("groups.allWell", { count: data.rows.length })}</Empty>;
        return (
          <DataTable
            label={t("groups.title")}
            rows={worst}
            columns={columns}
            rowKey={(row) => `${row.group}/${row.topic}`}
          />
        );
      }}
    </QueryState>
  );
}

function Brokers({ brokers }: { brokers: BrokerSummary[] }) {
  const { t } = useTranslation("overview");
  const format = useFormat();
  const columns: Column<BrokerSummary>[] = [
    { key: "name", header: t("brokers.name"), cell: (row) => <Name>{row.name}</Name>, sortBy: (row) => row.key },
    { key: "role", header: t("brokers.role"), width: "7rem", cell: (row) => t(`brokers.${row.role}`) },
    {
      key: "state",
      header: t("brokers.state"),
      width: "minmax(8rem, 1fr)",
      cell: (row) =>
        row.isReachable ? (
          t("brokers.reachable")
        ) : (
          <Text span inherit c="red">
            {row.detail ?? t("brokers.unreachable")}
          </Text>
        ),
    },
    {
      key: "rate",
      header: t("brokers.rate"),
      align: "end",
      width: "8rem",
      cell: (row) => <Value unit={t("perSecond")}>{format.rate(row.putRate)}</Value>,
      sortBy: (row) => row.putRate,
    },
    {
      key: "store",
      header: t("brokers.store"),
      align: "end",
      width: "8rem",
      cell: (row) => <Value>{format.bytes(row.storeBytes?.toString())}</Value>,
      sortBy: (row) => row.storeBytes,
    },
    {
      key: "disk",
      header: t("brokers.disk"),
      width: "10rem",
      cell: (row) => <Disk share={row.diskShare} />,
      sortBy: (row) => row.diskShare,
    },
    {
      key: "dispatch",
      header: t("brokers.dispatch"),
      align: "end",
      width: "9rem",
      cell: (row) => <Value>{format.bytes(row.dispatchBehindBytes)}</Value>,
      sortBy: (row) => row.dispatchBehindBytes,
    },
  ];
  return <DataTable label={t("brokers.title")} rows={brokers} columns={columns} rowKey={(row) => row.key} />;
}

function Disk({ share }: { share: number | null }) {
  const { t } = useTranslation("overview");
  const format = useFormat();
  if (share === null) return <Value>{null}</Value>;
  const color = share >= DISK_FULL ? "red" : share >= DISK_HIGH ? "orange" : "teal";
  return (
    <Group gap={8} wrap="nowrap">
      <Progress value={share * 100} color={color} w={70} aria-label={t("brokers.disk")} />
      <span>{format.share(share)}</span>
    </Group>
  );
}

function Changes() {
  const { t } = useTranslation("overview");
  const changes = useQuery(changesQuery);
  return (
    <QueryState query={changes} isEmpty={(items) => items.length === 0} empty={t("changes.none")}>
      {(items) => (
        <Stack className="panel" gap={0} component="ul" m={0} p={0} style={{ listStyle: "none" }}>
          {items.map((item) => (
            <Group
              key={item.id}
              component="li"
              px={14}
              py={8}
              gap="sm"
              style={{ borderBottom: "1px solid var(--hairline)" }}
            >
              <Text size="sm" c="dimmed" w={110}>
                <Ago time={item.at} />
              </Text>
              <Text size="sm" style={{ overflowWrap: "anywhere" }}>
                <Name>{item.actor}</Name> · {item.action} {item.kind} <Name>{item.name}</Name>
              </Text>
            </Group>
          ))}
        </Stack>
      )}
    </QueryState>
  );
}
