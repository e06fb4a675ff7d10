import { Alert, Button, Group, List, NativeSelect, Stack, Text, TextInput } from "@mantine/core";
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { useCallback, useState } from "react";
import { useTranslation } from "react-i18next";
import { messageKeys, type Message } from "@/api/messages";
import { gantryCommand } from "@/models/commands";
import { localTime, toInstant } from "@/models/times";
import { CopyAs } from "@/ui/copy-as";
import { useFormat } from "@/ui/format";
import { Empty, PageFrame, QueryState } from "@/ui/page-frame";
import { useOperations } from "@/ui/session";
import { useUrlState } from "@/ui/url-state";
import { Name } from "@/ui/value";
import { MoreRows } from "@/ui/paging";
import { saveMessages } from "./export";
import { LiveTail } from "./live-tail";
import { MessageDrawer } from "./message-drawer";
import { MessageTable } from "./message-table";
import { conditionsOf, isFiltered, searchQuery, unusedOf, type Search } from "./queries";

const START = { by: "time", topic: "", value: "", until: "", tags: "", sql: "" };

/** Finds messages by time, key, id or what a group has not consumed, and shows them as they arrive. */
export function MessagesPage() {
  const { t } = useTranslation("messages");
  const [url, setUrl] = useUrlState({ ...START, message: "" });
  const { message, ...search } = url;
  const open = useCallback(
    (found: Message) => {
      setUrl({ message: found.stored_id }, { panel: "open" });
    },
    [setUrl],
  );
  const queryClient = useQueryClient();
  const [run, setRun] = useState(0);
  const ways = useWays();
  const refusal = !ways.includes(search.by)
    ? t("refused.way", { by: search.by })
    : isFiltered(search.by) && search.tags !== "" && search.sql !== ""
      ? t("refused.both")
      : null;
  const unused = refusal === null ? unusedOf(search).map((name) => t(name)) : [];
  const isReady = search.topic !== "" && (search.by === "live" || search.value !== "");
  return (
    <PageFrame title={t("title")} description={t("description")}>
      <SearchForm
        key={JSON.stringify(search)}
        search={search}
        onSearch={(next) => {
          // The same search again shows what has arrived since.
          void queryClient.resetQueries({ queryKey: messageKeys.list({ ...next }) });
          setRun(run + 1);
          setUrl({ ...next, message: "" }, { push: true });
        }}
      />
      {(refusal !== null || unused.length > 0) && (
        <Alert role="alert" color="orange" variant="light">
          {refusal ?? t("refused.unused", { names: unused.join(", ") })}
        </Alert>
      )}
      {refusal !== null ? null : !isReady ? (
        <Empty>{t("start")}</Empty>
      ) : search.by === "live" ? (
        <LiveTail
          key={`live ${run} ${JSON.stringify(search)}`}
          topic={search.topic}
          tags={search.tags}
          sql={search.sql}
          onOpen={open}
        />
      ) : (
        <Found search={search} onOpen={open} />
      )}
      <MessageDrawer
        id={message}
        topic=""
        onClose={() => {
          setUrl({ message: "" }, { panel: "close" });
        }}
      />
    </PageFrame>
  );
}

/** The ways to find messages that this gateway has. */
function useWays(): string[] {
  const has = useOperations();
  const ways = [
    { by: "time", isThere: true },
    { by: "key", isThere: true },
    { by: "id", isThere: has(["GET /v1/messages/{id}"]) },
    { by: "group", isThere: true },
    { by: "live", isThere: has(["POST /v1/tickets", "GET /v1/stream"]) },
  ];
  return ways.filter((way) => way.isThere).map(({ by }) => by);
}

function SearchForm({ search, onSearch }: { search: Search; onSearch: (search: Search) => void }) {
  const { t } = useTranslation("messages");
  const ways = useWays();
  const [draft, setDraft] = useState(() => ({
    ...search,
    by: ways.includes(search.by) ? search.by : START.by,
    value: search.by === "time" ? localTime(search.value) : search.value,
    until: localTime(search.until),
  }));
  const set = (change: Partial<Search>) => {
    setDraft({ ...draft, ...change });
  };
  const hasFilters = isFiltered(draft.by);
  return (
    <form
      className="panel"
      style={{ padding: 14 }}
      onSubmit={(event) => {
        event.preventDefault();
        const value = draft.by === "time" ? toInstant(draft.value) : draft.value.trim();
        const until = draft.by === "time" ? toInstant(draft.until) : "";
        const filter = hasFilters ? { tags: draft.tags.trim(), sql: draft.sql.trim() } : { tags: "", sql: "" };
        onSearch({
          by: draft.by,
          topic: draft.topic.trim(),
          value: draft.by === "live" ? "" : value,
          until,
          ...filter,
        });
      }}
    >
      <Group align="flex-end" gap="sm">
        <TextInput
          label={t("topic")}
          required
          style={{ flex: "2 1 10rem" }}
          value={draft.topic}
          onChange={(event) => {
            set({ topic: event.currentTarget.value });
          }}
        />
        <NativeSelect
          label={t("by")}
          style={{ flex: "1 1 8rem" }}
          value={draft.by}
          data={ways.map((by) => ({ value: by, label: t(`ways.${by}`) }))}
          onChange={(event) => {
            set({ by: event.currentTarget.value, value: "" });
          }}
        />
        {draft.by !== "live" && (
          <TextInput
            label={t(`value.${draft.by}`)}
            required
            type={draft.by === "time" ? "datetime-local" : "text"}
            step={draft.by === "time" ? 1 : undefined}
            style={{ flex: "2 1 10rem" }}
            value={draft.value}
            onChange={(event) => {
              set({ value: event.currentTarget.value });
            }}
          />
        )}
        {draft.by === "time" && (
          <TextInput
            label={t("until")}
            type="datetime-local"
            step={1}
            style={{ flex: "2 1 10rem" }}
            value={draft.until}
            onChange={(event) => {
              set({ until: event.currentTarget.value });
            }}
          />
        )}
        {hasFilters && (
          <>
            <TextInput
              label={t("tags")}
              placeholder="eu || us"
              disabled={draft.sql !== "" && draft.tags === ""}
              style={{ flex: "1 1 7rem" }}
              value={draft.tags}
              onChange={(event) => {
                set({ tags: event.currentTarget.value });
              }}
            />
            <TextInput
              label={t("sql")}
              placeholder="weight > 5"
              disabled={draft.tags !== "" && draft.sql === ""}
              style={{ flex: "1 1 8rem" }}
              value={draft.sql}
              onChange={(event) => {
                set({ sql: event.currentTarget.value });
              }}
            />
          </>
        )}
        <Button type="submit">{draft.by === "live" ? t("watch") : t("find")}</Button>
      </Group>
    </form>
  );
}

function Found({ search, onOpen }: { search: Search; onOpen: (message: Message) => void }) {
  const { t } = useTranslation("messages");
  const format = useFormat();
  const query = useInfiniteQuery(searchQuery(search));
  const pages = query.data?.pages ?? [];
  const messages = pages.flatMap((page) => page.items);
  // Each page names the queues that it could not read, so the last one counts.
  const gaps = pages.at(-1)?.missing ?? [];
  return (
    <QueryState query={query}>
      {() => (
        <Stack gap="sm">
          <Group justify="space-between">
            <Text size="sm" c="dimmed" role="status">
              {t("count", { count: messages.length, shown: format.count(messages.length) })}
              {query.hasNextPage && ` · ${t("moreThere")}`}
              {search.by === "key" && pages.some((page) => page.truncated) && ` · ${t("truncated")}`}
            </Text>
            <Group gap="xs">
              <CopySearch search={search} />
              <Button
                size="xs"
                variant="default"
                disabled={messages.length === 0}
                onClick={() => {
                  saveMessages(messages, `${search.topic}.ndjson`);
                }}
              >
                {t("export")}
              </Button>
            </Group>
          </Group>
          {gaps.length > 0 && (
            <Alert role="alert" color="orange" variant="light" title={t("gaps", { count: gaps.length })}>
              <List size="sm" styles={{ item: { overflowWrap: "anywhere" } }}>
                {gaps.map((gap) => (
                  <List.Item key={`${gap.broker} ${gap.queue_id}`}>
                    <Name>{`${gap.broker} / ${gap.queue_id}`}</Name>: {gap.reason}
                  </List.Item>
                ))}
              </List>
            </Alert>
          )}
          {messages.length === 0 ? (
            <Empty>{query.hasNextPage ? t("noneSoFar") : t("none")}</Empty>
          ) : (
            <MessageTable rows={messages} onOpen={onOpen} />
          )}
          <MoreRows query={query} />
        </Stack>
      )}
    </QueryState>
  );
}

function CopySearch({ search }: { search: Search }) {
  const { by, topic, value } = search;
  if (by === "id") {
    return (
      <CopyAs
        call={{ method: "GET", path: "/v1/messages/{id}", values: { id: value }, query: { topic } }}
        gantry={gantryCommand("message", "get", value, "--topic", topic)}
      />
    );
  }
  const { key, ...conditions } = conditionsOf(search);
  const given = Object.entries({ key, ...conditions }).filter(
    (entry): entry is [string, string] => entry[1] !== undefined,
  );
  const options = given.flatMap(([name, text]) => (name === "key" ? [text] : [`--${name.replaceAll("_", "-")}`, text]));
  return (
    <CopyAs
      call={{ method: "GET", path: "/v1/topics/{topic}/messages", values: { topic }, query: Object.fromEntries(given) }}
      gantry={gantryCommand("message", "find", topic, ...options)}
    />
  );
}
