import { Badge, Group, Stack, Text, Timeline, Title } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import { lifeQuery } from "@/api/messages";
import type { Schema } from "@/api/types";
import { gantryCommand } from "@/models/commands";
import { CopyAs } from "./copy-as";
import { useFormat } from "./format";
import { QueryState } from "./page-frame";
import { Ago, Name, Value } from "./value";

const STATE_COLORS: Record<string, string> = { consumed: "green", dead: "red", retrying: "orange", unknown: "gray" };

/**
 * What happened to a message, and what each group made of it. `id` is a message id or a stored id; `everyMs` reads the
 * life again while it may change.
 */
export function MessageLife({ id, topic, everyMs = false }: { id: string; topic: string; everyMs?: number | false }) {
  const { t } = useTranslation("messages");
  const query = useQuery({ ...lifeQuery(id, topic), refetchInterval: everyMs });
  return (
    <Stack gap="sm" component="section" aria-label={t("life.title")}>
      <Group justify="space-between">
        <Title order={3}>{t("life.title")}</Title>
        <CopyAs
          call={{ method: "GET", path: "/v1/messages/{id}/trace", values: { id }, query: { topic } }}
          gantry={gantryCommand("message", "trace", id, "--topic", topic)}
        />
      </Group>
      <QueryState query={query}>
        {(life) => (
          <Stack gap="sm">
            <Events events={life.events} />
            <Stack gap={4} component="ul" m={0} p={0} style={{ listStyle: "none" }}>
              {life.groups.map((group) => (
                <Text key={group.group} component="li" size="sm" style={{ overflowWrap: "anywhere" }}>
                  <Badge color={STATE_COLORS[group.state] ?? "blue"} variant="light" tt="none" radius="sm">
                    {t(`life.state.${group.state}`)}
                  </Badge>{" "}
                  <Link to="/groups/$group" params={{ group: group.group }} className="row-link">
                    <Name>{group.group}</Name>
                  </Link>{" "}
                  <Text span inherit c="dimmed">
                    {group.why}
                  </Text>
                </Text>
              ))}
            </Stack>
            {life.missing.map((reason) => (
              <Text key={reason} size="sm" c="dimmed" fs="italic" style={{ overflowWrap: "anywhere" }}>
                {t("life.missing")} {reason}
              </Text>
            ))}
          </Stack>
        )}
      </QueryState>
    </Stack>
  );
}

function Events({ events }: { events: Schema<"LifeEvent">[] }) {
  const { t } = useTranslation("messages");
  const format = useFormat();
  return (
    <Timeline bulletSize={12} lineWidth={2} active={events.length - 1}>
      {events.map((event, at) => (
        <Timeline.Item
          key={at}
          title={
            <Text span size="sm" fw={600}>
              {t(`life.kind.${event.kind}`)}
            </Text>
          }
        >
          <Text size="xs" c="dimmed" style={{ overflowWrap: "anywhere" }}>
            {format.time(event.at)} · <Ago time={event.at} />
            {event.group !== null && (
              <>
                {" · "}
                <Name>{event.group}</Name>
              </>
            )}
            {event.client !== null && (
              <>
                {" · "}
                <Name>{event.client}</Name>
              </>
            )}
            {event.attempt !== null && ` · ${t("life.attempt", { number: event.attempt })}`}
          </Text>
          {event.detail !== "" && (
            <Text size="xs" style={{ overflowWrap: "anywhere" }}>
              <Value>{event.detail}</Value>
            </Text>
          )}
        </Timeline.Item>
      ))}
    </Timeline>
  );
}
