import { Badge, Button, Group as Row, Stack, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { IconPlus } from "@tabler/icons-react";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { groupKeys } from "@/api/groups";
import { deleteObjective, type Objective } from "@/api/objectives";
import { gantryCommand } from "@/models/commands";
import { isIgnored } from "@/models/objectives";
import { useConfirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { useNow } from "@/ui/now";
import { QueryState } from "@/ui/page-frame";
import { Problem } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { Ago, Name, When } from "@/ui/value";
import { ObjectiveDialog } from "./objective-dialog";
import { objectivesQuery } from "./queries";

const ICON_PX = 16;

/** How late the group may be: for all its topics, and for single ones. Reports compare the lag with it. */
export function Objectives({ group }: { group: string }) {
  const { t } = useTranslation("groups");
  const has = useOperations();
  const isOperator = useRole("operator");
  const confirm = useConfirm();
  const client = useQueryClient();
  const query = useQuery(objectivesQuery(group));
  const [edited, setEdited] = useState<Objective | "new" | null>(null);
  const mayPut = isOperator && has(["PUT /v1/groups/{group}/objective", "GET /v1/groups/{group}/objective"]);
  const mayDelete = isOperator && has(["DELETE /v1/groups/{group}/objective"]);
  const remove = useMutation({
    mutationFn: (objective: Objective) => deleteObjective(group, objective.topic),
    onSuccess: async () => {
      notifications.show({ message: t("objective.removed"), color: "green" });
      await client.invalidateQueries({ queryKey: groupKeys.detail(group) });
    },
  });
  const ask = async (objective: Objective) => {
    const { topic } = objective;
    const agreed = await confirm({
      title: t("objective.remove.title"),
      effects: [
        topic === null
          ? t("objective.remove.all", { name: group })
          : t("objective.remove.topic", { name: group, topic }),
      ],
      action: t("objective.remove.open"),
      isDangerous: true,
      copy: {
        call: { method: "DELETE", path: "/v1/groups/{group}/objective", values: { group }, query: { topic } },
        gantry: gantryCommand("group", "objective", "clear", group, ...(topic === null ? [] : ["--topic", topic])),
      },
    });
    if (agreed) remove.mutate(objective);
  };
  const columns = useColumns(mayPut ? setEdited : null, mayDelete ? (objective) => void ask(objective) : null);
  return (
    <Stack gap="sm">
      <Row justify="space-between">
        <Text size="sm" c="dimmed" style={{ flex: "1 1 14rem" }}>
          {t("objective.about")}
        </Text>
        <Row gap="xs">
          <CopyAs
            label={t("objective.copyAs")}
            call={{ method: "GET", path: "/v1/objectives", query: { group } }}
            gantry={gantryCommand("group", "objective", "list", "--group", group)}
          />
          {mayPut && (
            <Button
              size="xs"
              variant="default"
              leftSection={<IconPlus size={ICON_PX} />}
              onClick={() => {
                setEdited("new");
              }}
            >
              {t("objective.add")}
            </Button>
          )}
        </Row>
      </Row>
      {remove.error !== null && <Problem error={remove.error} />}
      <QueryState query={query} isEmpty={(rows) => rows.length === 0} empty={t("objective.none")}>
        {(rows) => (
          <DataTable
            label={t("tab.objectives")}
            rows={rows}
            columns={columns}
            rowKey={(objective) => objective.topic ?? ""}
          />
        )}
      </QueryState>
      {edited !== null && (
        <ObjectiveDialog
          group={group}
          topic={edited === "new" ? undefined : edited.topic}
          onClose={() => {
            setEdited(null);
          }}
        />
      )}
    </Stack>
  );
}

function Ignored({ of: objective }: { of: Objective }) {
  const { t } = useTranslation("groups");
  const isNow = isIgnored(objective, useNow());
  const until = objective.ignore_until;
  if (!objective.ignore) return t("objective.no");
  return (
    <Row gap={6}>
      <Badge variant="light" color={isNow ? "orange" : "gray"} tt="none" radius="sm">
        {t(isNow ? "objective.ignored" : "objective.ended")}
      </Badge>
      {until !== null && (
        <Text span size="sm">
          {isNow ? t("objective.ends") : null} {isNow ? <When time={until} /> : <Ago time={until} />}
        </Text>
      )}
    </Row>
  );
}

function useColumns(
  onEdit: ((objective: Objective) => void) | null,
  onRemove: ((objective: Objective) => void) | null,
): Column<Objective>[] {
  const { t } = useTranslation("groups");
  const format = useFormat();
  const nameOf = (objective: Objective) => objective.topic ?? t("objective.allTopics");
  const actions: Column<Objective> = {
    key: "actions",
    header: t("objective.actions"),
    width: "10.5rem",
    cell: (objective) => (
      <Row gap={6} wrap="nowrap">
        {onEdit !== null && (
          <Button
            size="compact-xs"
            variant="default"
            aria-label={t("objective.editOf", { name: nameOf(objective) })}
            onClick={() => {
              onEdit(objective);
            }}
          >
            {t("objective.edit")}
          </Button>
        )}
        {onRemove !== null && (
          <Button
            size="compact-xs"
            variant="default"
            aria-label={t("objective.removeOf", { name: nameOf(objective) })}
            onClick={() => {
              onRemove(objective);
            }}
          >
            {t("objective.remove.open")}
          </Button>
        )}
      </Row>
    ),
  };
  return [
    {
      key: "topic",
      header: t("topic"),
      width: "minmax(10rem, 1.5fr)",
      cell: (objective) =>
        objective.topic === null ? (
          t("objective.allTopics")
        ) : (
          <Link to="/topics/$topic" params={{ topic: objective.topic }} className="row-link">
            <Name>{objective.topic}</Name>
          </Link>
        ),
    },
    {
      key: "seconds",
      header: t("objective.max_lag_seconds"),
      width: "8rem",
      align: "end",
      cell: (objective) => format.duration(objective.max_lag_seconds) ?? t("objective.noLimit"),
    },
    {
      key: "messages",
      header: t("objective.max_lag_messages"),
      width: "8rem",
      align: "end",
      cell: (objective) => format.count(objective.max_lag_messages) ?? t("objective.noLimit"),
    },
    {
      key: "ignore",
      header: t("objective.ignore"),
      width: "minmax(9rem, 1fr)",
      cell: (objective) => <Ignored of={objective} />,
    },
    {
      key: "reason",
      header: t("objective.reason"),
      width: "minmax(9rem, 1.5fr)",
      cell: (objective) => (objective.reason === null ? "–" : <Name>{objective.reason}</Name>),
    },
    {
      key: "updated",
      header: t("updated"),
      width: "8rem",
      cell: (objective) => <Ago time={objective.updated_at} />,
    },
    ...(onEdit === null && onRemove === null ? [] : [actions]),
  ];
}
