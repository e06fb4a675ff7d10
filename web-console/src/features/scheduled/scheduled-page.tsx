import { Alert, Stack } from "@mantine/core";
import { useInfiniteQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { optionsOf } from "@/models/filters";
import { ANY_TIME, dueQuery, withMoves, type Moves, type Waiting } from "@/models/scheduled";
import { Panel } from "@/ui/dialog";
import { CopyAs } from "@/ui/copy-as";
import { Empty, PageFrame, QueryState } from "@/ui/page-frame";
import { useUrlState } from "@/ui/url-state";
import { MoreRows } from "@/ui/paging";
import { Filters } from "./filters";
import { OutcomeAlert, type Outcome } from "./outcome";
import { waitingKey, waitingQuery } from "./queries";
import { WaitingDetails } from "./waiting-details";
import { WaitingTable } from "./waiting-table";

/** Messages that wait for their time: found by due time, read, recalled, and given another time. */
export function ScheduledPage() {
  const { t } = useTranslation("scheduled");
  const [{ topic, message, ...filter }, change] = useUrlState({ topic: "", message: "", ...ANY_TIME });
  const [moves, setMoves] = useState<Moves>(new Map());
  const [outcome, setOutcome] = useState<Outcome | null>(null);
  const client = useQueryClient();
  const wanted = dueQuery(filter);
  const query = useInfiniteQuery(waitingQuery(topic, wanted));
  const waiting = withMoves(query.data?.pages.flatMap((page) => page.items) ?? [], moves);
  const open = waiting.find((each) => each.handle === message);
  const end = (ended: Waiting, kind: Outcome["kind"], place: { handle: string; deliver_at: string } | null = null) => {
    setMoves((before) => new Map([...before, [ended.handle, place]]));
    setOutcome({ kind, messageId: ended.message_id, deliverAt: place?.deliver_at ?? null });
    change({ message: "" }, { panel: "close" });
    void client.invalidateQueries({ queryKey: waitingKey(ended.topic) });
  };
  return (
    <PageFrame
      title={t("title")}
      description={t("description")}
      actions={
        topic !== "" && (
          <CopyAs
            call={{ method: "GET", path: "/v1/topics/{topic}/scheduled", values: { topic }, query: wanted }}
            gantry={gantryCommand("message", "scheduled", topic, ...optionsOf(wanted))}
          />
        )
      }
    >
      <Filters topic={topic} filter={filter} onChange={change} />
      {outcome !== null && (
        <OutcomeAlert
          outcome={outcome}
          onClose={() => {
            setOutcome(null);
          }}
        />
      )}
      {topic === "" ? (
        <Empty>{t("start")}</Empty>
      ) : (
        <QueryState query={query}>
          {() => (
            <Stack gap="sm">
              {waiting.length > 0 ? (
                <WaitingTable
                  waiting={waiting}
                  onOpen={(row) => {
                    change({ message: row.handle }, { panel: "open" });
                  }}
                />
              ) : (
                <Empty>
                  {query.hasNextPage ? t("noneSoFar") : Object.keys(wanted).length === 0 ? t("none") : t("noneLike")}
                </Empty>
              )}
              <MoreRows query={query} label={t("later")} />
            </Stack>
          )}
        </QueryState>
      )}
      <Panel
        opened={message !== "" && query.data !== undefined}
        onClose={() => {
          change({ message: "" }, { panel: "close" });
        }}
        size="xl"
        title={t("message")}
      >
        {open === undefined ? (
          message !== "" && (
            <Alert color="gray" variant="light">
              {t("notListed")}
            </Alert>
          )
        ) : (
          <WaitingDetails
            key={open.handle}
            message={open}
            onRecalled={() => {
              end(open, "recalled");
            }}
            onGone={() => {
              end(open, "gone");
            }}
            onMoved={({ handle, deliver_at }) => {
              if (handle === null || deliver_at === null) end(open, "delivered");
              else end(open, "moved", { handle, deliver_at });
            }}
          />
        )}
      </Panel>
    </PageFrame>
  );
}
