import { Group as Row, Stack, Switch, Text } from "@mantine/core";
import type { UseQueryResult } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import { flowsOf, type Flow, type Statistics } from "@/models/traffic";
import type { Call } from "@/models/commands";
import { CopyAs } from "./copy-as";
import { DataTable, type Column } from "./data-table";
import { useFormat } from "./format";
import { Missing } from "./missing";
import { Empty, QueryState } from "./page-frame";
import { useUrlState } from "./url-state";
import { Name } from "./value";

const WINDOWS = ["minute", "hour", "day"] as const;

/** How many messages of a topic or a group flowed over the last minute, hour and day, and what is not counted. */
export function Traffic({
  query,
  of,
  command,
}: {
  query: UseQueryResult<Statistics>;
  of: "topic" | "group";
  command: { call: Call; gantry: string };
}) {
  const { t } = useTranslation();
  const [url, setUrl] = useUrlState({ brokers: "no" });
  return (
    <Stack gap="sm">
      <Row justify="space-between">
        <Switch
          label={t("traffic.byBroker")}
          checked={url.brokers === "yes"}
          onChange={(event) => {
            setUrl({ brokers: event.currentTarget.checked ? "yes" : "no" });
          }}
        />
        <CopyAs label={t("traffic.copyAs")} {...command} />
      </Row>
      <QueryState query={query}>
        {(found) => <Flows found={found} of={of} isByBroker={url.brokers === "yes"} />}
      </QueryState>
    </Stack>
  );
}

function Flows({ found, of, isByBroker }: { found: Statistics; of: "topic" | "group"; isByBroker: boolean }) {
  const { t } = useTranslation();
  const flows = flowsOf(found, isByBroker);
  const columns = useColumns(of, flows.isByBroker);
  const isWhole = found.missing.length === 0;
  return (
    <Stack gap="sm">
      <Missing title={t("traffic.missing")} reasons={found.missing} />
      {found.truncated && (
        <Text size="sm" c="dimmed">
          {t("traffic.truncated")}
        </Text>
      )}
      {flows.rows.length === 0 ? (
        <Empty>{t(isWhole ? "traffic.none" : "traffic.unknown")}</Empty>
      ) : (
        <DataTable
          label={t("traffic.title")}
          rows={flows.rows}
          columns={columns}
          rowKey={(flow) => [flow.topic, flow.group, flow.kind, flow.broker].join(" ")}
        />
      )}
    </Stack>
  );
}

function useColumns(of: "topic" | "group", isByBroker: boolean): Column<Flow>[] {
  const { t } = useTranslation();
  const format = useFormat();
  const topic: Column<Flow> = {
    key: "topic",
    header: t("traffic.topic"),
    width: "minmax(10rem, 1.5fr)",
    sortBy: (flow) => flow.topic,
    cell: (flow) => (
      <Link to={"/topics/$topic"} params={{ topic: flow.topic }} className="row-link">
        <Name>{flow.topic}</Name>
      </Link>
    ),
  };
  const group: Column<Flow> = {
    key: "group",
    header: t("traffic.group"),
    width: "minmax(10rem, 1.5fr)",
    sortBy: (flow) => flow.group,
    cell: (flow) =>
      flow.group === null ? (
        "–"
      ) : (
        <Link to={"/groups/$group"} params={{ group: flow.group }} className="row-link">
          <Name>{flow.group}</Name>
        </Link>
      ),
  };
  const kind: Column<Flow> = {
    key: "kind",
    header: t("traffic.kind"),
    width: "9rem",
    cell: (flow) => t(`traffic.kinds.${flow.kind}`),
  };
  const broker: Column<Flow> = {
    key: "broker",
    header: t("traffic.broker"),
    width: "9rem",
    sortBy: (flow) => flow.broker,
    cell: (flow) => (flow.broker === null ? "–" : <Name>{flow.broker}</Name>),
  };
  return [
    ...(of === "group" ? [topic, kind] : [kind, group]),
    ...(isByBroker ? [broker] : []),
    {
      key: "rate",
      header: t("traffic.perSecond"),
      width: "8rem",
      align: "end",
      sortBy: (flow) => flow.minute.messages_per_s,
      cell: (flow) => format.rate(flow.minute.messages_per_s),
    },
    ...WINDOWS.map((name): Column<Flow> => ({
      key: name,
      header: t(`traffic.${name}`),
      width: "10rem",
      align: "end",
      sortBy: (flow) => flow[name].messages,
      cell: (flow) => (
        <span>
          {format.count(flow[name].messages)}
          {flow[name].bytes !== null && <span className="unit"> · {format.bytes(flow[name].bytes)}</span>}
        </span>
      ),
    })),
  ];
}
