import { Button, Group, Stack } from "@mantine/core";
import { IconDownload } from "@tabler/icons-react";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { fillPath } from "@/api/request";
import { beginOf } from "@/models/bodies";
import { gantryCommand } from "@/models/commands";
import { ANY_LETTER, letterQuery, type Letter, type Selection } from "@/models/dead-letters";
import { optionsOf } from "@/models/filters";
import { Panel } from "@/ui/dialog";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { Empty, PageFrame, QueryState } from "@/ui/page-frame";
import { useOperations, useRole } from "@/ui/session";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name, Value } from "@/ui/value";
import { MoreRows } from "@/ui/paging";
import { Filters } from "./filters";
import { LetterDetails, Redriven } from "./letter-details";
import { lettersQuery } from "./queries";
import { RedriveDialog } from "./redrive";
import { RedriveProgress } from "./redrive-progress";

const ICON_PX = 16;
const KEY_CHARACTERS = 200;
const PREVIEW_CHARACTERS = 80;

/** Messages that a group failed to consume for the last time: found, read, exported, and sent again. */
export function DeadLettersPage() {
  const { t } = useTranslation("dead-letters");
  const has = useOperations();
  const isOperator = useRole("operator");
  const [{ group, letter, job, ...filter }, change] = useUrlState({ group: "", letter: "", job: "", ...ANY_LETTER });
  const [redriven, setRedriven] = useState<Selection | null>(null);
  const wanted = letterQuery(filter);
  const query = useInfiniteQuery(lettersQuery(group, wanted));
  const pages = query.data?.pages ?? [];
  const letters = pages.flatMap((page) => page.items);
  const isRedriveKnown = pages.every((page) => page.metadata !== "unavailable");
  const open = letters.find((each) => each.stored_id === letter);
  const isEmpty = query.data !== undefined && letters.length === 0 && !query.hasNextPage;
  const canRedrive =
    !isEmpty && isOperator && has(["POST /v1/groups/{group}/dead-letters:redrive", "GET /v1/jobs/{job}"]);
  return (
    <PageFrame
      title={t("title")}
      description={t("description")}
      actions={group !== "" && <Actions group={group} wanted={wanted} onRedrive={canRedrive ? setRedriven : null} />}
    >
      <Filters group={group} filter={filter} onChange={change} />
      {job !== "" && (
        <RedriveProgress
          group={group}
          id={job}
          onClose={() => {
            change({ job: "" });
          }}
        />
      )}
      {group === "" ? (
        <Empty>{t("start")}</Empty>
      ) : (
        <QueryState
          query={query}
          select={() => pages.find((page) => page.metadata === "unavailable")}
          isEmpty={() => isEmpty}
          empty={Object.keys(wanted).length === 0 ? t("none") : t("noneLike")}
        >
          {() => (
            <Stack gap="sm">
              {letters.length === 0 ? (
                <Empty>{t("noneSoFar")}</Empty>
              ) : (
                <LetterTable
                  letters={letters}
                  isRedriveKnown={isRedriveKnown}
                  onOpen={(row) => {
                    change({ letter: row.stored_id }, { panel: "open" });
                  }}
                />
              )}
              <MoreRows query={query} label={t("older")} />
            </Stack>
          )}
        </QueryState>
      )}
      <Panel
        opened={open !== undefined}
        onClose={() => {
          change({ letter: "" }, { panel: "close" });
        }}
        size="xl"
        title={t("letter")}
      >
        {open !== undefined && (
          <Stack gap="md">
            <Group gap="xs">
              <CopyAs
                call={{ method: "GET", path: "/v1/messages/{id}", values: { id: open.stored_id } }}
                gantry={gantryCommand("dlq", "show", group, open.stored_id)}
              />
              {canRedrive && (
                <Button
                  size="xs"
                  onClick={() => {
                    setRedriven({ id: open.stored_id });
                  }}
                >
                  {t("redrive.open")}
                </Button>
              )}
            </Group>
            <LetterDetails letter={open} isRedriveKnown={isRedriveKnown} />
          </Stack>
        )}
      </Panel>
      {redriven !== null && (
        <RedriveDialog
          group={group}
          selection={redriven}
          onClose={() => {
            setRedriven(null);
          }}
          onStarted={(started) => {
            setRedriven(null);
            change({ job: started.job, letter: "" });
          }}
        />
      )}
    </PageFrame>
  );
}

function Actions({
  group,
  wanted,
  onRedrive,
}: {
  group: string;
  wanted: Record<string, string>;
  /** Null if the reader may not send letters again. */
  onRedrive: ((selection: Selection) => void) | null;
}) {
  const { t } = useTranslation("dead-letters");
  const has = useOperations();
  return (
    <>
      <CopyAs
        call={{ method: "GET", path: "/v1/groups/{group}/dead-letters", values: { group }, query: wanted }}
        gantry={gantryCommand("dlq", "list", group, ...optionsOf(wanted))}
      />
      {has(["GET /v1/groups/{group}/dead-letters:export"]) && (
        <>
          <CopyAs
            label={t("exportAs")}
            call={{ method: "GET", path: "/v1/groups/{group}/dead-letters:export", values: { group }, query: wanted }}
            gantry={gantryCommand("dlq", "export", group, ...optionsOf(wanted))}
          />
          <Button
            component="a"
            href={fillPath("/v1/groups/{group}/dead-letters:export", { group }, wanted)}
            download={`${group}.ndjson`}
            size="xs"
            variant="default"
            leftSection={<IconDownload size={ICON_PX} />}
          >
            {t("export")}
          </Button>
        </>
      )}
      {onRedrive !== null && (
        <Button
          size="xs"
          onClick={() => {
            onRedrive({ query: wanted });
          }}
        >
          {Object.keys(wanted).length === 0 ? t("redrive.openAll") : t("redrive.openThese")}
        </Button>
      )}
    </>
  );
}

function LetterTable({
  letters,
  isRedriveKnown,
  onOpen,
}: {
  letters: Letter[];
  isRedriveKnown: boolean;
  onOpen: (letter: Letter) => void;
}) {
  const { t } = useTranslation("dead-letters");
  const format = useFormat();
  const columns: Column<Letter>[] = [
    {
      key: "id",
      header: t("id"),
      width: "minmax(12rem, 1.4fr)",
      cell: (row) => (
        <button
          type="button"
          className="row-link cell-button"
          onClick={() => {
            onOpen(row);
          }}
        >
          <Name>{row.message_id}</Name>
        </button>
      ),
    },
    {
      key: "origin",
      header: t("origin"),
      cell: (row) => <Value>{row.origin.topic === null ? null : <Name>{row.origin.topic}</Name>}</Value>,
      sortBy: (row) => row.origin.topic,
    },
    { key: "keys", header: t("keys"), cell: (row) => <Name>{beginOf(row.keys.join(", "), KEY_CHARACTERS)}</Name> },
    { key: "tag", header: t("tag"), width: "7rem", cell: (row) => <Name>{row.tag ?? ""}</Name> },
    {
      key: "attempts",
      header: t("attempts"),
      width: "6rem",
      align: "end",
      cell: (row) => format.count(row.attempts),
      sortBy: (row) => row.attempts,
    },
    {
      key: "redriven",
      header: t("redriven"),
      width: "8rem",
      cell: (row) => <Redriven letter={row} isKnown={isRedriveKnown} />,
      sortBy: (row) => row.redriven_at,
    },
    {
      key: "died",
      header: t("died"),
      width: "8rem",
      cell: (row) => <Ago time={row.dead_at} />,
      sortBy: (row) => row.dead_at,
    },
    {
      key: "body",
      header: t("body"),
      width: "minmax(12rem, 2fr)",
      cell: (row) => <Name>{row.encoding === "base64" ? t("binary") : beginOf(row.body, PREVIEW_CHARACTERS)}</Name>,
    },
  ];
  return (
    <DataTable label={t("title")} rows={letters} columns={columns} rowKey={(row) => row.stored_id} onOpen={onOpen} />
  );
}
