import { Alert, Anchor, Button, Group, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { IconSend, IconTrash } from "@tabler/icons-react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { deleteTopic, topicKeys, type Topic } from "@/api/topics";
import { gantryCommand } from "@/models/commands";
import { AppliedState } from "@/ui/applied-state";
import { useConfirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { PageFrame, QueryState } from "@/ui/page-frame";
import { useFailureNotice } from "@/ui/problem";
import { Sections } from "@/ui/sections";
import { useOperations, useRole } from "@/ui/session";
import { Traffic } from "@/ui/traffic";
import { Ago, Name } from "@/ui/value";
import { Consumers } from "./consumers";
import { Producers } from "./producers";
import { topicQuery, trafficQuery } from "./queries";
import { Queues } from "./queues";
import { Rates } from "./rates";
import { Routes } from "./routes";
import { SendMessage } from "./send-message";
import { Settings } from "./settings";

const ICON_PX = 16;

/** One topic: its queues, routes, rates, producers, consumers and settings. */
export function TopicPage() {
  const { t } = useTranslation("topics");
  const name = useParams({ strict: false }).topic ?? "";
  const query = useQuery(topicQuery(name));
  const [isSending, setSending] = useState(false);
  const has = useOperations();
  const isOperator = useRole("operator");
  return (
    <PageFrame
      title={name}
      crumbs={[{ label: t("title"), to: "/topics" }]}
      actions={
        query.data !== undefined && (
          <>
            <CopyAs
              call={{ method: "GET", path: "/v1/topics/{topic}", values: { topic: name } }}
              gantry={gantryCommand("topic", "show", name)}
            />
            {isOperator && has(["POST /v1/topics/{topic}/messages"]) && (
              <Button
                size="xs"
                leftSection={<IconSend size={ICON_PX} />}
                onClick={() => {
                  setSending(true);
                }}
              >
                {t("send.open")}
              </Button>
            )}
            {isOperator && has(["DELETE /v1/topics/{topic}"]) && <Delete name={name} />}
          </>
        )
      }
    >
      <QueryState query={query}>
        {({ topic, etag }) => (
          <>
            <Facts topic={topic} />
            <TopicSections topic={topic} etag={etag} />
          </>
        )}
      </QueryState>
      {isSending && (
        <SendMessage
          topic={name}
          onClose={() => {
            setSending(false);
          }}
        />
      )}
    </PageFrame>
  );
}

function Facts({ topic }: { topic: Topic }) {
  const { t } = useTranslation("topics");
  const has = useOperations();
  return (
    <Group gap="md">
      <AppliedState of={topic} />
      <Text size="sm" c="dimmed">
        {t(`origin.${topic.origin}`)}
      </Text>
      {topic.updated_at !== null && (
        <Text size="sm" c="dimmed">
          {t("updated")} <Ago time={topic.updated_at} />
        </Text>
      )}
      {has(["GET /v1/topics/{topic}/scheduled"]) && (
        <Anchor component={Link} to="/scheduled" search={{ topic: topic.topic } as never} size="sm">
          {t("scheduled")}
        </Anchor>
      )}
      {topic.pending.length > 0 && (
        <Alert color="orange" variant="light" p="xs" w="100%">
          {t("pendingOn")} <Name>{topic.pending.join(", ")}</Name>
        </Alert>
      )}
    </Group>
  );
}

function TopicSections({ topic, etag }: { topic: Topic; etag: string | null }) {
  const { t } = useTranslation("topics");
  const has = useOperations();
  const sections = [
    {
      name: "queues",
      label: t("tab.queues"),
      isThere: has(["GET /v1/topics/{topic}/queues"]),
      view: <Queues topic={topic.topic} />,
    },
    { name: "routes", label: t("tab.routes"), view: <Routes topic={topic} /> },
    {
      name: "rates",
      label: t("tab.rates"),
      isThere: has(["GET /v1/reports/throughput_rollup/rows"]),
      view: <Rates topic={topic.topic} />,
    },
    {
      name: "traffic",
      label: t("tab.traffic"),
      isThere: has(["GET /v1/topics/{topic}/statistics"]),
      view: <TopicTraffic topic={topic.topic} />,
    },
    {
      name: "producers",
      label: t("tab.producers"),
      isThere: has(["GET /v1/topics/{topic}/producers"]),
      view: <Producers topic={topic.topic} />,
    },
    {
      name: "consumers",
      label: t("tab.consumers"),
      isThere: has(["GET /v1/reports/lag_report/rows"]),
      view: <Consumers topic={topic.topic} />,
    },
    {
      name: "settings",
      label: t("tab.settings"),
      isKept: true,
      view: <Settings key={topic.topic} topic={topic} etag={etag} />,
    },
  ];
  return <Sections sections={sections} />;
}

function TopicTraffic({ topic }: { topic: string }) {
  const query = useQuery(trafficQuery(topic));
  const call = { method: "GET", path: "/v1/topics/{topic}/statistics", values: { topic } } as const;
  return <Traffic query={query} of="topic" command={{ call, gantry: gantryCommand("topic", "stats", topic) }} />;
}

function Delete({ name }: { name: string }) {
  const { t } = useTranslation("topics");
  const confirm = useConfirm();
  const client = useQueryClient();
  const noteFailure = useFailureNotice();
  const navigate = useNavigate();
  const remove = useMutation({
    mutationFn: () => deleteTopic(name),
    onSuccess: async () => {
      await navigate({ to: "/topics" });
      client.removeQueries({ queryKey: topicKeys.detail(name) });
      await client.invalidateQueries({ queryKey: topicKeys.all });
      notifications.show({ message: t("delete.done", { name }), color: "green" });
    },
    onError: (error) => {
      noteFailure(t("delete.failed", { name }), error);
    },
  });
  const ask = async () => {
    const agreed = await confirm({
      title: t("delete.title", { name }),
      effects: [t("delete.messages", { name }), t("delete.scheduled"), t("delete.consumers")],
      action: t("delete.submit"),
      isDangerous: true,
      typed: name,
      copy: {
        call: { method: "DELETE", path: "/v1/topics/{topic}", values: { topic: name } },
        gantry: gantryCommand("topic", "delete", name, "--yes"),
      },
    });
    if (agreed) remove.mutate();
  };
  return (
    <Button
      size="xs"
      variant="default"
      leftSection={<IconTrash size={ICON_PX} />}
      loading={remove.isPending}
      onClick={() => void ask()}
    >
      {t("delete.open")}
    </Button>
  );
}
