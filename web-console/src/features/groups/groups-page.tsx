import { Button, Group as Row, Switch, Text } from "@mantine/core";
import { IconPlus } from "@tabler/icons-react";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo, useState } from "react";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { summariesOf, type GroupSummary } from "@/models/groups";
import { severityOf } from "@/models/lag";
import { searchNames } from "@/models/search";
import { AppliedState } from "@/ui/applied-state";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { Empty, PageFrame, QueryState } from "@/ui/page-frame";
import { useOperations, useRole } from "@/ui/session";
import { SearchField, useTyped } from "@/ui/typing";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name, Value } from "@/ui/value";
import { Verdict } from "@/ui/verdict";
import { useVerdictText } from "@/ui/verdict-text";
import { useAllPages } from "@/ui/paging";
import { CreateGroup } from "./create-group";
import { groupsQuery, lagQuery } from "./queries";
import { Paused } from "./paused";
import { Trend } from "./trend";

const ICON_PX = 16;

/** All consumer groups: which are late, by how much, and whether it gets better. */
export function GroupsPage() {
  const { t } = useTranslation("groups");
  const format = useFormat();
  const navigate = useNavigate();
  const [url, setUrl] = useUrlState({ q: "", system: "no", sort: "verdict", order: "up" });
  const [isCreating, setCreating] = useState(false);
  const has = useOperations();
  const isOperator = useRole("operator");
  const hasLag = has(["GET /v1/reports/lag_report/rows"]);
  const query = useInfiniteQuery(groupsQuery(url.system === "yes"));
  const lag = useQuery({ ...lagQuery, enabled: hasLag });
  useAllPages(query);
  const summaries = useMemo(
    () => summariesOf(query.data?.pages.flatMap((page) => page.items) ?? [], lag.data?.rows ?? []),
    [query.data, lag.data],
  );
  const search = useTyped(url.q, (q) => {
    setUrl({ q });
  });
  const found = useMemo(
    () => searchNames(summaries, search.text, (each) => each.group.group),
    [summaries, search.text],
  );
  const columns = useColumns(hasLag, lag.data === null ? t("noReport") : t("notInReport"));
  const count =
    found.length === summaries.length
      ? t("count", { count: summaries.length, shown: format.count(summaries.length) })
      : t("found", { found: format.count(found.length), all: format.count(summaries.length) });
  return (
    <PageFrame
      title={t("title")}
      actions={
        <>
          <CopyAs
            call={{ method: "GET", path: "/v1/groups", query: { limit: 1_000 } }}
            gantry={gantryCommand("group", "list", url.system === "yes" ? "--system" : undefined)}
          />
          {isOperator && has(["PUT /v1/groups/{group}"]) && (
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
      <Row gap="md">
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
        {hasLag && lag.data !== undefined && (
          <Text size="sm" c="dimmed">
            {lag.data === null ? t("noReport") : <AsOf time={lag.data.asOf} />}
            {lag.data?.isPart && ` ${t("partOfReport")}`}
          </Text>
        )}
      </Row>
      <QueryState
        query={query}
        select={(data) => data.pages[0]}
        isEmpty={() => summaries.length === 0}
        empty={t("none")}
      >
        {() =>
          found.length === 0 ? (
            <Empty>{t("nothingFound")}</Empty>
          ) : (
            <DataTable
              label={t("title")}
              rows={found}
              columns={columns}
              rowKey={(row) => row.group.group}
              initialSort={{ key: url.sort, descending: url.order === "down" }}
              onSort={(sort) => {
                setUrl({ sort: sort.key, order: sort.descending ? "down" : "up" });
              }}
              onOpen={(row) => void navigate({ to: "/groups/$group", params: { group: row.group.group } })}
            />
          )
        }
      </QueryState>
      {isCreating && (
        <CreateGroup
          onClose={() => {
            setCreating(false);
          }}
        />
      )}
    </PageFrame>
  );
}

function AsOf({ time }: { time: string }) {
  const { t } = useTranslation("groups");
  return (
    <>
      {t("asOf")} <Ago time={time} />
    </>
  );
}

function useColumns(hasLag: boolean, unlisted: string): Column<GroupSummary>[] {
  const { t } = useTranslation("groups");
  const format = useFormat();
  const textOf = useVerdictText();
  return useMemo(() => {
    const reason = (row: GroupSummary) => (row.verdict === null ? unlisted : textOf(row.cause));
    const name: Column<GroupSummary> = {
      key: "name",
      header: t("name"),
      width: "minmax(10rem, 2fr)",
      sortBy: (row) => row.group.group,
      cell: (row) => (
        <Link to="/groups/$group" params={{ group: row.group.group }} className="row-link">
          <Name>{row.group.group}</Name>
        </Link>
      ),
    };
    const lag: Column<GroupSummary>[] = [
      {
        key: "verdict",
        header: t("verdict"),
        width: "9.5rem",
        sortBy: (row) => (row.verdict === null ? null : severityOf(row.verdict)),
        cell: (row) =>
          row.verdict === null ? <Value reason={unlisted}>{null}</Value> : <Verdict verdict={row.verdict} />,
      },
      {
        key: "messages",
        header: t("lag.messages"),
        width: "8.5rem",
        align: "end",
        sortBy: (row) => row.messages,
        cell: (row) => <Value reason={reason(row)}>{format.count(row.messages)}</Value>,
      },
      {
        key: "seconds",
        header: t("lag.seconds"),
        width: "7.5rem",
        align: "end",
        sortBy: (row) => row.seconds,
        cell: (row) => <Value reason={reason(row)}>{format.duration(row.seconds)}</Value>,
      },
      {
        key: "trend",
        header: t("trend.title"),
        width: "9.5rem",
        sortBy: (row) => row.trend,
        cell: (row) => <Trend perSecond={row.trend} reason={reason(row)} />,
      },
      {
        key: "clients",
        header: t("clients.count"),
        width: "5.5rem",
        align: "end",
        sortBy: (row) => row.clients,
        cell: (row) => <Value reason={reason(row)}>{format.count(row.clients)}</Value>,
      },
    ];
    const rest: Column<GroupSummary>[] = [
      {
        key: "state",
        header: t("state"),
        width: "10.5rem",
        sortBy: (row) => row.group.state,
        cell: (row) => (
          <Row gap={4}>
            <AppliedState of={row.group} />
            {!row.group.consume && <Paused />}
          </Row>
        ),
      },
    ];
    return [name, ...(hasLag ? lag : []), ...rest];
  }, [t, format, textOf, hasLag, unlisted]);
}
