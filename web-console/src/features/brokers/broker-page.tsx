import { Alert, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import type { BrokerSummary, ClusterSummary } from "@/models/cluster";
import { CopyAs } from "@/ui/copy-as";
import { Facts, type Fact } from "@/ui/facts";
import { useFormat } from "@/ui/format";
import { PageFrame, QueryState } from "@/ui/page-frame";
import { Sections } from "@/ui/sections";
import { useOperations } from "@/ui/session";
import { Ago, Name, Value } from "@/ui/value";
import { BrokerState } from "./broker-state";
import { Drain } from "./drain";
import { brokersQuery } from "./queries";
import { Settings } from "./settings";

const MS = 1_000;

/** One broker: its master and slaves with their numbers, its settings, and the way to drain it. */
export function BrokerPage() {
  const { t } = useTranslation("brokers");
  const name = useParams({ strict: false }).broker ?? "";
  const query = useQuery(brokersQuery);
  const parts = query.data?.brokers.filter((broker) => broker.name === name) ?? [];
  const master = parts.find((broker) => broker.role === "master");
  return (
    <PageFrame
      title={name}
      crumbs={[{ label: t("title"), to: "/brokers" }]}
      actions={
        query.data !== undefined &&
        parts.length > 0 && (
          <>
            <CopyAs call={{ method: "GET", path: "/v1/cluster" }} gantry={gantryCommand("broker", "list")} />
            {master !== undefined && <Drain broker={master} cluster={query.data} />}
          </>
        )
      }
    >
      <QueryState query={query} isEmpty={() => parts.length === 0} empty={t("noBroker", { name })}>
        {(cluster) => <BrokerSections name={name} parts={parts} cluster={cluster} />}
      </QueryState>
    </PageFrame>
  );
}

function BrokerSections({ name, parts, cluster }: { name: string; parts: BrokerSummary[]; cluster: ClusterSummary }) {
  const { t } = useTranslation("brokers");
  const has = useOperations();
  const state = (
    <Stack gap="sm">
      {parts.map((part) => (
        <Part key={part.key} broker={part} />
      ))}
      {cluster.unreachable.length > 0 && (
        <Text size="sm" c="dimmed">
          {t("unreachable")} <Name>{cluster.unreachable.join(", ")}</Name>
        </Text>
      )}
    </Stack>
  );
  const sections = [
    { name: "state", label: t("tab.state"), view: state },
    {
      name: "settings",
      label: t("tab.settings"),
      isThere: has(["GET /v1/brokers/{broker}/settings"]),
      isKept: true,
      view: <Settings key={name} broker={name} />,
    },
  ];
  return <Sections sections={sections} />;
}

/** A master or a slave with all of its numbers. */
function Part({ broker }: { broker: BrokerSummary }) {
  const { t } = useTranslation("brokers");
  const format = useFormat();
  const why = broker.detail;
  const value = (key: string, text: string | null) => (
    <Value key={key} reason={why}>
      {text}
    </Value>
  );
  const facts: Fact[] = [
    [t("address"), <Name key="address">{broker.address}</Name>],
    [t("version"), value("version", broker.version)],
    [t("booted"), <Ago key="booted" time={broker.bootedAt} />],
    [t("in"), value("in", format.rate(broker.putRate))],
    [t("out"), value("out", format.rate(broker.getRate))],
    [t("p99"), value("p99", format.duration(broker.putP99Ms === null ? null : broker.putP99Ms / MS))],
    [t("putToday"), value("putToday", format.count(broker.putToday))],
    [t("gotToday"), value("gotToday", format.count(broker.gotToday))],
    [t("disk"), value("disk", format.share(broker.diskShare))],
    [t("store"), value("store", format.bytes(broker.storeBytes === null ? null : broker.storeBytes.toString()))],
    [t("flush"), value("flush", format.bytes(broker.flushBehindBytes))],
    [t("dispatch"), value("dispatch", format.bytes(broker.dispatchBehindBytes))],
    [t("earliest"), <Ago key="earliest" time={broker.earliestStoredAt} />],
  ];
  return (
    <section className="panel" style={{ padding: 16 }} aria-label={`${t(`roles.${broker.role}`)} ${broker.address}`}>
      <Stack gap="md">
        <Text component="div" fw={600}>
          {t(`roles.${broker.role}`)} <BrokerState broker={broker} />
        </Text>
        {(broker.detail ?? broker.reason) !== null && (
          <Alert color="red" variant="light" p="xs">
            <Name>{broker.detail ?? broker.reason ?? ""}</Name>
          </Alert>
        )}
        <Facts facts={facts} />
      </Stack>
    </section>
  );
}
