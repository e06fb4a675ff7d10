import { Badge, Group, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import type { Schema } from "@/api/types";
import { gantryCommand } from "@/models/commands";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { Missing } from "@/ui/missing";
import { Empty, QueryState } from "@/ui/page-frame";
import { Ago, Name, Value } from "@/ui/value";
import { producersQuery } from "./queries";

type Producer = Schema<"TopicProducer">;

/** The connected producers that have sent to the topic. Those of a broker that does not answer are unknown. */
export function Producers({ topic }: { topic: string }) {
  const { t } = useTranslation("topics");
  const query = useQuery(producersQuery(topic));
  return (
    <Stack gap="sm">
      <Group justify="space-between">
        <Text size="sm" c="dimmed">
          {t("producers.about")}
        </Text>
        <CopyAs
          label={t("producers.copyAs")}
          call={{ method: "GET", path: "/v1/topics/{topic}/producers", values: { topic } }}
          gantry={gantryCommand("topic", "producers", topic)}
        />
      </Group>
      <QueryState query={query}>{(found) => <Found found={found} />}</QueryState>
    </Stack>
  );
}

function Found({ found }: { found: Schema<"TopicProducers"> }) {
  const { t } = useTranslation("topics");
  const columns = useColumns();
  const isWhole = found.missing.length === 0;
  return (
    <Stack gap="sm">
      <Missing title={t("producers.missing")} reasons={found.missing} />
      {found.truncated && (
        <Text size="sm" c="dimmed">
          {t("producers.truncated")}
        </Text>
      )}
      {found.items.some((row) => row.kind === "gateway") && (
        <Text size="sm" c="dimmed">
          {t("producers.gatewayHint")}
        </Text>
      )}
      {found.items.length === 0 ? (
        <Empty>{t(isWhole ? "producers.none" : "producers.unknown")}</Empty>
      ) : (
        <DataTable label={t("tab.producers")} rows={found.items} columns={columns} rowKey={keyOf} />
      )}
    </Stack>
  );
}

function useColumns(): Column<Producer>[] {
  const { t } = useTranslation("topics");
  return [
    {
      key: "group",
      header: t("producers.group"),
      width: "minmax(10rem, 1.5fr)",
      sortBy: (row) => row.group,
      cell: (row) => <Name>{row.group}</Name>,
    },
    {
      key: "client",
      header: t("producers.client"),
      width: "minmax(14rem, 2fr)",
      sortBy: (row) => row.client_id,
      cell: (row) => (
        <Group gap={6} wrap="nowrap">
          {row.kind === "gateway" && (
            <Badge size="sm" variant="light" style={{ flexShrink: 0 }}>
              {t("producers.gateway")}
            </Badge>
          )}
          {row.client_id === null ? <Value reason={t("producers.noId")}>{null}</Value> : <Name>{row.client_id}</Name>}
        </Group>
      ),
    },
    {
      key: "address",
      header: t("producers.address"),
      width: "minmax(10.5rem, 1fr)",
      sortBy: (row) => row.address,
      cell: (row) => <Name>{row.address}</Name>,
    },
    {
      key: "language",
      header: t("producers.language"),
      sortBy: (row) => `${row.language} ${row.version}`,
      cell: (row) => <Name>{`${row.language} ${row.version}`.trim()}</Name>,
    },
    {
      key: "brokers",
      header: t("producers.brokers"),
      sortBy: (row) => row.brokers.join(", "),
      cell: (row) => <Name>{row.brokers.join(", ")}</Name>,
    },
    {
      key: "last",
      header: t("producers.last"),
      width: "9rem",
      sortBy: (row) => row.last_sent_at,
      cell: (row) => <Ago time={row.last_sent_at} />,
    },
  ];
}

/** Producers whose ids are unknown differ by their addresses. */
const keyOf = (row: Producer) => [row.group, row.client_id, row.address, row.brokers.join(" ")].join(" ");
