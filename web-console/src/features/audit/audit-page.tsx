import { Button, Stack } from "@mantine/core";
import { IconDownload } from "@tabler/icons-react";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { fillPath } from "@/api/request";
import { changedFields, toQuery, type AuditEntry } from "@/models/audit";
import { gantryCommand } from "@/models/commands";
import { optionsOf } from "@/models/filters";
import { Panel } from "@/ui/dialog";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { PageFrame, QueryState } from "@/ui/page-frame";
import { RoleNeeded } from "@/ui/role-needed";
import { useOperations, useRole } from "@/ui/session";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name } from "@/ui/value";
import { MoreRows } from "@/ui/paging";
import { EntryDetails } from "./entry-details";
import { ANY, Filters } from "./filters";
import { auditQuery } from "./queries";

const ICON_PX = 16;

/** Who changed what, and when: filtered, with the difference of each change, and as a file. */
export function AuditPage() {
  const { t } = useTranslation("audit");
  if (useRole("admin")) return <Trail />;
  return (
    <PageFrame title={t("title")} description={t("description")}>
      <RoleNeeded role="admin" />
    </PageFrame>
  );
}

function Trail() {
  const { t } = useTranslation("audit");
  const has = useOperations();
  const [{ entry, ...filter }, change] = useUrlState({ ...ANY, entry: "" });
  const wanted = toQuery(filter);
  const query = useInfiniteQuery(auditQuery(wanted));
  const entries = query.data?.pages.flatMap((page) => page.items) ?? [];
  const open = entries.find((each) => each.id === entry);
  const words = optionsOf(wanted);
  return (
    <PageFrame
      title={t("title")}
      description={t("description")}
      actions={
        <>
          <CopyAs
            call={{ method: "GET", path: "/v1/audit", query: wanted }}
            gantry={gantryCommand("audit", "list", ...words)}
          />
          {has(["GET /v1/audit:export"]) && (
            <>
              <CopyAs
                label={t("exportAs")}
                call={{ method: "GET", path: "/v1/audit:export", query: wanted }}
                gantry={gantryCommand("audit", "export", ...words)}
              />
              <Button
                component="a"
                href={fillPath("/v1/audit:export", {}, wanted)}
                download="audit.ndjson"
                size="xs"
                variant="default"
                leftSection={<IconDownload size={ICON_PX} />}
              >
                {t("export")}
              </Button>
            </>
          )}
        </>
      }
    >
      <Filters filter={filter} onChange={change} />
      <QueryState
        query={query}
        isEmpty={() => entries.length === 0}
        empty={Object.keys(wanted).length === 0 ? t("none") : t("noneLike")}
      >
        {() => (
          <Stack gap="sm">
            <EntryTable
              entries={entries}
              onOpen={(row) => {
                change({ entry: row.id }, { panel: "open" });
              }}
            />
            <MoreRows query={query} label={t("older")} />
          </Stack>
        )}
      </QueryState>
      <Panel
        opened={open !== undefined}
        onClose={() => {
          change({ entry: "" }, { panel: "close" });
        }}
        size="xl"
        title={open && <Name>{`${open.action} · ${open.name}`}</Name>}
      >
        {open !== undefined && <EntryDetails entry={open} />}
      </Panel>
    </PageFrame>
  );
}

function EntryTable({ entries, onOpen }: { entries: AuditEntry[]; onOpen: (entry: AuditEntry) => void }) {
  const { t } = useTranslation("audit");
  const columns: Column<AuditEntry>[] = [
    {
      key: "action",
      header: t("action"),
      width: "minmax(11rem, 1fr)",
      cell: (row) => (
        <button
          type="button"
          className="row-link cell-button"
          onClick={() => {
            onOpen(row);
          }}
        >
          {row.action}
        </button>
      ),
      sortBy: (row) => row.action,
    },
    {
      key: "name",
      header: t("name"),
      width: "minmax(10rem, 1.4fr)",
      cell: (row) => <Name>{row.name}</Name>,
      sortBy: (row) => row.name,
    },
    {
      key: "actor",
      header: t("actor"),
      width: "minmax(13rem, 1.2fr)",
      cell: (row) => <Name>{row.actor}</Name>,
      sortBy: (row) => row.actor,
    },
    {
      key: "fields",
      header: t("fields"),
      width: "minmax(12rem, 2fr)",
      cell: (row) => <Name>{changedFields(row) || t("noFields")}</Name>,
    },
    { key: "at", header: t("at"), width: "9rem", cell: (row) => <Ago time={row.at} />, sortBy: (row) => row.at },
  ];
  return <DataTable label={t("title")} rows={entries} columns={columns} rowKey={(row) => row.id} onOpen={onOpen} />;
}
