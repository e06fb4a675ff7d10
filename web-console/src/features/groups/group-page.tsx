import { Alert, Button, Group as Row, Menu, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { IconDots, IconMailX, IconPlayerPause, IconPlayerPlay, IconRestore } from "@tabler/icons-react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, useNavigate, useParams } from "@tanstack/react-router";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { changeGroup, deleteGroup, groupKeys, type Group, type OffsetReset } from "@/api/groups";
import { gantryCommand, type Call } from "@/models/commands";
import { AppliedState } from "@/ui/applied-state";
import { useConfirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { PageFrame, QueryState } from "@/ui/page-frame";
import { useFailureNotice } from "@/ui/problem";
import { Sections } from "@/ui/sections";
import { useOperations, useRole } from "@/ui/session";
import { Traffic } from "@/ui/traffic";
import { Ago, Name } from "@/ui/value";
import { CloneOffsets } from "./clone-offsets";
import { Clients } from "./clients";
import { Undo } from "./moved-offsets";
import { Objectives } from "./objectives";
import { Offsets } from "./offsets";
import { Paused } from "./paused";
import { groupQuery, keepLastMove, lastMoveQuery, trafficQuery } from "./queries";
import { ResetOffsets } from "./reset-offsets";
import { Settings } from "./settings";
import { Subscriptions } from "./subscriptions";
import { Summary } from "./summary";

const ICON_PX = 16;

/** One consumer group: how late it is and why, its offsets, clients, subscriptions and settings. */
export function GroupPage() {
  const { t } = useTranslation("groups");
  const has = useOperations();
  const name = useParams({ strict: false }).group ?? "";
  const query = useQuery(groupQuery(name));
  return (
    <PageFrame
      title={name}
      crumbs={[{ label: t("title"), to: "/groups" }]}
      actions={
        <>
          <CopyAs
            call={{ method: "GET", path: "/v1/groups/{group}", values: { group: name } }}
            gantry={gantryCommand("group", "show", name)}
          />
          {has(["GET /v1/groups/{group}/dead-letters"]) && (
            <Button
              component={Link}
              to="/dead-letters"
              search={{ group: name } as never}
              size="xs"
              variant="default"
              leftSection={<IconMailX size={ICON_PX} />}
            >
              {t("deadLetters")}
            </Button>
          )}
          {query.data !== undefined && <Actions key={name} group={query.data.group} etag={query.data.etag} />}
        </>
      }
    >
      <QueryState query={query}>
        {({ group, etag }) => (
          <>
            <Facts group={group} />
            <GroupSections group={group} etag={etag} />
          </>
        )}
      </QueryState>
    </PageFrame>
  );
}

function Facts({ group }: { group: Group }) {
  const { t } = useTranslation("groups");
  return (
    <Row gap="md">
      <AppliedState of={group} />
      {!group.consume && <Paused />}
      <Text size="sm" c="dimmed">
        {t(`origin.${group.origin}`)}
      </Text>
      {group.updated_at !== null && (
        <Text size="sm" c="dimmed">
          {t("updated")} <Ago time={group.updated_at} />
        </Text>
      )}
      {group.pending.length > 0 && (
        <Alert color="orange" variant="light" p="xs" w="100%">
          {t("pendingOn")} <Name>{group.pending.join(", ")}</Name>
        </Alert>
      )}
    </Row>
  );
}

function GroupSections({ group, etag }: { group: Group; etag: string | null }) {
  const { t } = useTranslation("groups");
  const has = useOperations();
  const name = group.group;
  const sections = [
    {
      name: "summary",
      label: t("tab.summary"),
      isThere: has(["GET /v1/reports/lag_report/rows"]),
      view: <Summary group={name} />,
    },
    {
      name: "offsets",
      label: t("tab.offsets"),
      isThere: has(["GET /v1/groups/{group}/offsets"]),
      view: <Offsets group={name} />,
    },
    {
      name: "clients",
      label: t("tab.clients"),
      isThere: has(["GET /v1/groups/{group}/clients"]),
      view: <Clients group={name} />,
    },
    {
      name: "subscriptions",
      label: t("tab.subscriptions"),
      isThere: has(["GET /v1/groups/{group}/subscriptions"]),
      view: <Subscriptions group={name} />,
    },
    {
      name: "traffic",
      label: t("tab.traffic"),
      isThere: has(["GET /v1/groups/{group}/statistics"]),
      view: <GroupTraffic group={name} />,
    },
    {
      name: "objectives",
      label: t("tab.objectives"),
      isThere: has(["GET /v1/objectives"]),
      view: <Objectives group={name} />,
    },
    {
      name: "settings",
      label: t("tab.settings"),
      isKept: true,
      view: <Settings key={name} group={group} etag={etag} />,
    },
  ];
  return <Sections sections={sections} />;
}

function GroupTraffic({ group }: { group: string }) {
  const query = useQuery(trafficQuery(group));
  const call = { method: "GET", path: "/v1/groups/{group}/statistics", values: { group } } as const;
  return <Traffic query={query} of="group" command={{ call, gantry: gantryCommand("group", "stats", group) }} />;
}

function Actions({ group, etag }: { group: Group; etag: string | null }) {
  const { t } = useTranslation("groups");
  const has = useOperations();
  const isOperator = useRole("operator");
  const [open, setOpen] = useState<"reset" | "clone" | null>(null);
  const name = group.group;
  const client = useQueryClient();
  const { data: last } = useQuery(lastMoveQuery(name));
  const keep = (moved: OffsetReset, isUndone: boolean) => {
    keepLastMove(client, name, { moved, isUndone });
  };
  const keepMove = (moved: OffsetReset) => {
    keep(moved, false);
  };
  if (!isOperator) return null;
  const mayReset = has(["POST /v1/groups/{group}/offsets:reset"]);
  const mayClone = has(["POST /v1/groups/{group}/offsets:clone"]);
  const mayUndo = has(["POST /v1/groups/{group}/offsets:undo"]);
  const mayDelete = has(["DELETE /v1/groups/{group}"]);
  const close = () => {
    setOpen(null);
  };
  return (
    <>
      {has(["PUT /v1/groups/{group}"]) && <Pause group={group} etag={etag} />}
      {mayReset && (
        <Button
          size="xs"
          leftSection={<IconRestore size={ICON_PX} />}
          onClick={() => {
            setOpen("reset");
          }}
        >
          {t("reset.open")}
        </Button>
      )}
      {last?.moved.undo && mayUndo && (
        <Undo
          group={name}
          token={last.moved.undo}
          isUndone={last.isUndone}
          onDone={(moved) => {
            keep(moved, !last.isUndone);
          }}
        />
      )}
      {(mayClone || mayDelete) && (
        <More
          name={name}
          mayDelete={mayDelete}
          onClone={
            mayClone
              ? () => {
                  setOpen("clone");
                }
              : null
          }
        />
      )}
      {open === "reset" && <ResetOffsets group={name} onClose={close} onMoved={keepMove} />}
      {open === "clone" && <CloneOffsets group={name} onClose={close} onMoved={keepMove} />}
    </>
  );
}

/** Pauses or resumes a group: brokers give a paused group no messages, and keep them. */
function Pause({ group, etag }: { group: Group; etag: string | null }) {
  const { t } = useTranslation("groups");
  const confirm = useConfirm();
  const client = useQueryClient();
  const noteFailure = useFailureNotice();
  const verb = group.consume ? "pause" : "resume";
  const change = useMutation({
    mutationFn: () => changeGroup(group.group, { consume: !group.consume }, etag ?? ""),
    onSuccess: async () => {
      notifications.show({ message: t(`${verb}.done`, { name: group.group }), color: "green" });
      await client.invalidateQueries({ queryKey: groupKeys.all });
    },
    onError: async (error) => {
      noteFailure(t(`${verb}.failed`), error);
      await client.invalidateQueries({ queryKey: groupKeys.detail(group.group) });
    },
  });
  const ask = async () => {
    const effects = [t(`${verb}.effect`, { name: group.group }), t(`${verb}.after`)];
    const title = t(`${verb}.title`, { name: group.group });
    const question = { title, effects, action: t(`${verb}.open`), isDangerous: group.consume };
    const body = { consume: !group.consume };
    const call: Call = { method: "PUT", path: "/v1/groups/{group}", values: { group: group.group }, body };
    const gantry = gantryCommand("group", "create", group.group, body.consume ? "--consume" : "--no-consume");
    if (await confirm({ ...question, copy: { call, gantry } })) change.mutate();
  };
  const Icon = group.consume ? IconPlayerPause : IconPlayerPlay;
  return (
    <Button
      size="xs"
      variant="default"
      leftSection={<Icon size={ICON_PX} />}
      loading={change.isPending}
      onClick={() => void ask()}
    >
      {t(`${verb}.open`)}
    </Button>
  );
}

function More({ name, mayDelete, onClone }: { name: string; mayDelete: boolean; onClone: (() => void) | null }) {
  const { t } = useTranslation("groups");
  const confirm = useConfirm();
  const client = useQueryClient();
  const noteFailure = useFailureNotice();
  const navigate = useNavigate();
  const remove = useMutation({
    mutationFn: () => deleteGroup(name),
    onSuccess: async () => {
      await navigate({ to: "/groups" });
      client.removeQueries({ queryKey: groupKeys.detail(name) });
      await client.invalidateQueries({ queryKey: groupKeys.all });
      notifications.show({ message: t("delete.done", { name }), color: "green" });
    },
    onError: (error) => {
      noteFailure(t("delete.failed", { name }), error);
    },
  });
  const ask = async () => {
    const agreed = await confirm({
      title: t("delete.title", { name }),
      effects: [t("delete.offsets", { name }), t("delete.letters"), t("delete.consumers")],
      action: t("delete.submit"),
      isDangerous: true,
      typed: name,
      copy: {
        call: { method: "DELETE", path: "/v1/groups/{group}", values: { group: name } },
        gantry: gantryCommand("group", "delete", name, "--yes"),
      },
    });
    if (agreed) remove.mutate();
  };
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <Button size="xs" variant="default" leftSection={<IconDots size={ICON_PX} />} loading={remove.isPending}>
          {t("more")}
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        {onClone !== null && <Menu.Item onClick={onClone}>{t("clone.open")}</Menu.Item>}
        {mayDelete && (
          <Menu.Item color="red" onClick={() => void ask()}>
            {t("delete.open")}
          </Menu.Item>
        )}
      </Menu.Dropdown>
    </Menu>
  );
}
