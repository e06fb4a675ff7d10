import { Badge, Button, Group, Switch, Text } from "@mantine/core";
import { IconPlus } from "@tabler/icons-react";
import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { useTranslation } from "react-i18next";
import type { Topic } from "@/api/topics";
import { gantryCommand } from "@/models/commands";
import { brokersText, searchTopics } from "@/models/topics";
import { AppliedState } from "@/ui/applied-state";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { Empty, PageFrame, QueryState } from "@/ui/page-frame";
import { useOperations, useRole } from "@/ui/session";
import { SearchField, useTyped } from "@/ui/typing";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name, Value } from "@/ui/value";
import { useAllPages } from "@/ui/paging";
import { CreateTopic } from "./create-topic";
import { topicsQuery } from "./queries";

const ICON_PX = 16;
const MS = 1_000;

/** All topics: search, sort, open, create. */
export function TopicsPage() {
  const { t } = useTranslation("topics");
  const format = useFormat();
  const navigate = useNavigate();
  const [url, setUrl] = useUrlState({ q: "", system: "no", sort: "name", order: "up" });
  const [isCreating, setCreating] = useState(false);
  const has = useOperations();
  const isOperator = useRole("operator");
  const mayCreate = isOperator && has(["PUT /v1/topics/{topic}"]);
  const query = useInfiniteQuery(topicsQuery(url.system === "yes"));
  useAllPages(query);
  const topics = useMemo(() => query.data?.pages.flatMap((page) => page.items) ?? [], [query.data]);
  const search = useTyped(url.q, (q) => {
    setUrl({ q });
  });
  const found = useMemo(() => searchTopics(topics, search.text), [topics, search.text]);
  const columns = useColumns();
  const count =
    found.length === topics.length
      ? t("count", { count: topics.length, shown: format.count(topics.length) })
      : t("found", { found: format.count(found.length), all: format.count(topics.length) });

  return (
    <PageFrame
      title={t("title")}
      actions={
        <>
          <CopyAs
            call={{ method: "GET", path: "/v1/topics", query: { limit: 1_000 } }}
            gantry={gantryCommand("topic", "list", url.system === "yes" ? "--system" : undefined)}
          />
          {mayCreate && (
            <Button
              size="xs"
              leftSection={<IconPlus size={ICON_PX} />}
              onClick={() => {
                setCreating(true);
              }}
            >
              {t("create.open")}
            </Button>
          )}
        </>
      }
    >
      <Group gap="md">
        <SearchField label={t("search")} typed={search} />
        <Switch
          label={t("system")}
          checked={url.system === "yes"}
          onChange={(event) => {
            setUrl({ system: event.currentTarget.checked ? "yes" : "no" });
          }}
        />
        <Text size="sm" c="dimmed" role="status">
          {query.data === undefined ? "" : count}
          {query.hasNextPage && ` ${t("loadingMore")}`}
        </Text>
      </Group>
      <QueryState query={query} select={(data) => data.pages[0]} isEmpty={() => topics.length === 0} empty={t("none")}>
        {() =>
          found.length === 0 ? (
            <Empty>{t("nothingFound")}</Empty>
          ) : (
            <DataTable
              label={t("title")}
              rows={found}
              columns={columns}
              rowKey={(row) => row.topic}
              initialSort={{ key: url.sort, descending: url.order === "down" }}
              onSort={(sort) => {
                setUrl({ sort: sort.key, order: sort.descending ? "down" : "up" });
              }}
              onOpen={(row) => void navigate({ to: "/topics/$topic", params: { topic: row.topic } })}
            />
          )
        }
      </QueryState>
      {isCreating && (
        <CreateTopic
          onClose={() => {
            setCreating(false);
          }}
        />
      )}
    </PageFrame>
  );
}

function useColumns(): Column<Topic>[] {
  const { t } = useTranslation("topics");
  const format = useFormat();
  return useMemo(
    () => [
      {
        key: "name",
        header: t("name"),
        width: "minmax(13rem, 2fr)",
        sortBy: (row) => row.topic,
        cell: (row) => (
          <Link to={"/topics/$topic"} params={{ topic: row.topic }} className="row-link">
            <Name>{row.topic}</Name>
          </Link>
        ),
      },
      {
        key: "state",
        header: t("state.title"),
        width: "8rem",
        sortBy: (row) => row.state,
        cell: (row) => <AppliedState of={row} />,
      },
      {
        key: "queues",
        header: t("queues.count"),
        width: "8rem",
        align: "end",
        sortBy: (row) => row.read_queues,
        cell: (row) =>
          row.read_queues === row.write_queues
            ? format.count(row.read_queues)
            : t("queues.readWrite", { read: row.read_queues, write: row.write_queues }),
      },
      {
        key: "perm",
        header: t("setting.perm"),
        width: "8rem",
        sortBy: (row) => row.perm,
        cell: (row) => t(`perm.${row.perm}`),
      },
      {
        key: "kind",
        header: t("kind.title"),
        width: "9rem",
        cell: (row) => (
          <Group gap={4}>
            {row.order && (
              <Badge variant="light" color="gray" tt="none">
                {t("kind.order")}
              </Badge>
            )}
            {row.duplicate_window_ms !== null && row.duplicate_window_ms > 0 && (
              <Badge variant="light" color="gray" tt="none">
                {t("kind.window", { time: format.duration(row.duplicate_window_ms / MS) })}
              </Badge>
            )}
          </Group>
        ),
      },
      { key: "brokers", header: t("setting.brokers"), cell: (row) => brokersText(row) ?? t("allBrokers") },
      {
        key: "updated",
        header: t("updated"),
        width: "9rem",
        sortBy: (row) => row.updated_at,
        cell: (row) => (row.updated_at === null ? <Value>{null}</Value> : <Ago time={row.updated_at} />),
      },
    ],
    [t, format],
  );
}
