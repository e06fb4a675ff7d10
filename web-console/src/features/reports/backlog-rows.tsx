import { Group, NativeSelect, Progress, Stack, Text } from "@mantine/core";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useMemo } from "react";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { SECTIONS, sharesOf, standInOf, type BacklogRow } from "@/models/reports";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { Empty, QueryState } from "@/ui/page-frame";
import { useUrlState } from "@/ui/url-state";
import { Name, Value } from "@/ui/value";
import { isWithoutRun, backlogRowsQuery } from "./queries";
import { MoreRows } from "@/ui/paging";
import { RowsHead } from "./rows-head";

/** What the backlogs of groups consist of, one section at a time. */
export function BacklogRows({ run, newest }: { run: string; newest: string }) {
  const { t } = useTranslation("reports");
  const [{ section }, setUrl] = useUrlState({ section: "age" });
  const query = useInfiniteQuery(backlogRowsQuery(run, newest, section));
  const rows = useMemo(() => query.data?.pages.flatMap((page) => page.items) ?? [], [query.data]);
  if (query.data === undefined && isWithoutRun(query.error)) return <Empty>{t("run.noneYet")}</Empty>;
  return (
    <Stack gap="sm">
      <RowsHead
        asOf={query.data?.pages[0]?.as_of ?? null}
        copy={
          <CopyAs
            call={{ method: "GET", path: "/v1/reports/backlog_profile/rows", query: { run, section } }}
            gantry={gantryCommand("report", "show", "backlog_profile", "--run", run, "--section", section)}
          />
        }
      >
        <NativeSelect
          size="xs"
          label={t("backlog.by")}
          data={SECTIONS.map((value) => ({ value, label: t(`section.${value}`) }))}
          value={section}
          onChange={(event) => {
            setUrl({ section: event.currentTarget.value });
          }}
        />
      </RowsHead>
      <QueryState query={query} isEmpty={() => rows.length === 0} empty={t("backlog.none")}>
        {() => <BacklogTable rows={rows} section={section} isWhole={!query.hasNextPage} />}
      </QueryState>
      <MoreRows query={query} />
    </Stack>
  );
}

function BacklogTable({ rows, section, isWhole }: { rows: BacklogRow[]; section: string; isWhole: boolean }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const shares = useMemo(() => sharesOf(rows), [rows]);
  const columns: Column<BacklogRow>[] = [
    {
      key: "bucket",
      header: t(`section.${section}`),
      width: "minmax(9rem, 1.2fr)",
      cell: (row) => (section === "age" ? <Age row={row} /> : <BucketName row={row} />),
      sortBy: (row) => row.lower_bound ?? row.bucket,
    },
    { key: "group", header: t("lag.group"), cell: (row) => <Name>{row.group}</Name>, sortBy: (row) => row.group },
    { key: "topic", header: t("lag.topic"), cell: (row) => <Name>{row.topic}</Name>, sortBy: (row) => row.topic },
    {
      key: "messages",
      header: t("backlog.messages"),
      width: "8rem",
      align: "end",
      cell: (row) => <Value>{format.count(row.messages)}</Value>,
      sortBy: (row) => row.messages,
    },
    {
      key: "bytes",
      header: t("backlog.bytes"),
      width: "8rem",
      align: "end",
      cell: (row) => <Value reason={t("backlog.noBodies")}>{format.bytes(row.bytes)}</Value>,
      sortBy: (row) => row.bytes,
    },
  ];
  const share: Column<BacklogRow> = {
    key: "share",
    header: t("backlog.share"),
    width: "minmax(10rem, 1fr)",
    cell: (row) => <Share share={shares.get(row) ?? null} />,
    sortBy: (row) => shares.get(row) ?? null,
  };
  return (
    <DataTable
      label={t("backlog.title")}
      rows={rows}
      // A group may go on in the next page, and its shares are known only with all of its rows.
      columns={isWhole ? [...columns, share] : columns}
      rowKey={(row) => JSON.stringify([row.group, row.topic, row.section, row.bucket])}
    />
  );
}

/** The age of a bucket's messages. The report names it in English, so its bounds are shown. */
function Age({ row }: { row: BacklogRow }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  const [low, high] = [format.duration(row.lower_bound), format.duration(row.upper_bound)];
  if (row.lower_bound === 0) return t("backlog.under", { high });
  if (low === null) return <Value>{null}</Value>;
  return high === null ? t("backlog.over", { low }) : t("backlog.from", { low, high });
}

/** The name of a bucket, in the chosen language where it is none of the data. */
function BucketName({ row }: { row: BacklogRow }) {
  const { t } = useTranslation("reports");
  const standIn = standInOf(row);
  if (standIn === "unknown") return <Value reason={t("backlog.notRead")}>{null}</Value>;
  if (standIn === null) return <Name>{row.bucket}</Name>;
  return (
    <Text span inherit c="dimmed">
      {t("backlog.noTag")}
    </Text>
  );
}

function Share({ share }: { share: number | null }) {
  const { t } = useTranslation("reports");
  const format = useFormat();
  if (share === null) return <Value>{null}</Value>;
  return (
    <Group gap={8} wrap="nowrap">
      <Progress value={share * 100} w={80} aria-label={t("backlog.share")} />
      <Text span inherit>
        {format.share(share)}
      </Text>
    </Group>
  );
}
