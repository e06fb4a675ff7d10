import { Alert, Button, Checkbox, Group, Stack, Table, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { changeTopic, getTopic, topicKeys, type Topic } from "@/api/topics";
import {
  conflicts,
  differences,
  rebase,
  toChange,
  toSettings,
  type Conflict,
  type TopicSettings,
} from "@/models/topics";
import { useConfirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { Problem } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { SettingsFields } from "./settings-form";

interface Read {
  settings: TopicSettings;
  etag: string;
}

/**
 * The settings of a topic. The form remembers what it has read: a change shows its difference before it is saved, and if
 * another person was faster, the form shows what they changed and keeps the own changes.
 */
export function Settings({ topic, etag }: { topic: Topic; etag: string | null }) {
  const { t } = useTranslation("topics");
  const has = useOperations();
  const isOperator = useRole("operator");
  const mayChange = isOperator && has(["PUT /v1/topics/{topic}"]);
  const [read, setRead] = useState<Read>({ settings: toSettings(topic), etag: etag ?? "" });
  const [mine, setMine] = useState(read.settings);
  const [isHiding, setHiding] = useState(false);
  const [others, setOthers] = useState<Conflict[]>([]);
  const confirm = useConfirm();
  const client = useQueryClient();
  const changed = differences(read.settings, mine);
  const body = {
    ...toChange(
      mine,
      changed.map(({ name }) => name),
    ),
    ...(isHiding ? { allow_hiding: true } : {}),
  };

  const save = useMutation({
    mutationFn: () => changeTopic(topic.topic, body, read.etag),
    onSuccess: async ({ data, etag: next }) => {
      const settings = toSettings(data);
      setRead({ settings, etag: next ?? "" });
      setMine(settings);
      setOthers([]);
      setHiding(false);
      notifications.show({ message: t("settings.saved"), color: "green" });
      await client.invalidateQueries({ queryKey: topicKeys.all });
    },
    onError: async (error) => {
      if (asApiError(error).kind !== "version-conflict") return;
      const { data, etag: next } = await getTopic(topic.topic);
      const theirs = toSettings(data);
      setOthers(conflicts(read.settings, theirs, mine));
      setMine(rebase(read.settings, theirs, mine));
      setRead({ settings: theirs, etag: next ?? "" });
    },
  });
  const ask = async () => {
    const effects = changed.map(({ name, before, after }) =>
      t("settings.effect", { name: t(`setting.${name}`), before: before || "–", after: after || "–" }),
    );
    const agreed = await confirm({
      title: t("settings.confirm", { name: topic.topic }),
      effects: isHiding ? [...effects, t("settings.hides")] : effects,
      action: t("settings.save"),
      isDangerous: isHiding,
    });
    if (agreed) save.mutate();
  };
  const error = save.error === null ? null : asApiError(save.error);
  const problem = error?.problem ?? null;
  const refused = problem?.field === undefined ? null : { field: problem.field, detail: problem.detail };
  return (
    <form
      className="panel"
      style={{ padding: 16 }}
      onSubmit={(event) => {
        event.preventDefault();
        void ask();
      }}
    >
      <Stack>
        {error !== null && error.kind !== "version-conflict" && <Problem error={error} />}
        {others.length > 0 && <OthersChanges conflicts={others} />}
        <fieldset disabled={!mayChange} style={{ border: 0, padding: 0, margin: 0 }}>
          <SettingsFields settings={mine} onChange={setMine} refused={refused} />
        </fieldset>
        {error?.kind === "hides-messages" && (
          <Checkbox
            color="red"
            label={t("settings.allowHiding")}
            checked={isHiding}
            onChange={(event) => {
              setHiding(event.currentTarget.checked);
            }}
          />
        )}
        {changed.length > 0 && <Diff before={read.settings} after={mine} />}
        {mayChange && (
          <Group justify="space-between">
            <CopyAs
              call={{
                method: "PUT",
                path: "/v1/topics/{topic}",
                values: { topic: topic.topic },
                body,
                headers: { "If-Match": read.etag },
              }}
            />
            <Group>
              <Button
                variant="default"
                disabled={changed.length === 0}
                onClick={() => {
                  setMine(read.settings);
                }}
              >
                {t("settings.discard")}
              </Button>
              <Button type="submit" disabled={changed.length === 0} loading={save.isPending}>
                {t("settings.save")}
              </Button>
            </Group>
          </Group>
        )}
      </Stack>
    </form>
  );
}

function Diff({ before, after }: { before: TopicSettings; after: TopicSettings }) {
  const { t } = useTranslation("topics");
  return (
    <Table aria-label={t("settings.diff")} withTableBorder>
      <Table.Thead>
        <Table.Tr>
          <Table.Th>{t("settings.setting")}</Table.Th>
          <Table.Th>{t("settings.before")}</Table.Th>
          <Table.Th>{t("settings.after")}</Table.Th>
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {differences(before, after).map((each) => (
          <Table.Tr key={each.name}>
            <Table.Td>{t(`setting.${each.name}`)}</Table.Td>
            <Table.Td>
              <del>{each.before || "–"}</del>
            </Table.Td>
            <Table.Td>
              <ins style={{ fontWeight: 600, textDecoration: "none" }}>{each.after || "–"}</ins>
            </Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}

function OthersChanges({ conflicts: found }: { conflicts: Conflict[] }) {
  const { t } = useTranslation("topics");
  return (
    <Alert role="alert" color="orange" variant="light" title={t("conflict.title")}>
      <Text size="sm" mb={6}>
        {t("conflict.detail")}
      </Text>
      <Table aria-label={t("conflict.title")}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>{t("settings.setting")}</Table.Th>
            <Table.Th>{t("conflict.read")}</Table.Th>
            <Table.Th>{t("conflict.theirs")}</Table.Th>
            <Table.Th>{t("conflict.mine")}</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {found.map((each) => (
            <Table.Tr key={each.name}>
              <Table.Td>{t(`setting.${each.name}`)}</Table.Td>
              <Table.Td>{each.read || "–"}</Table.Td>
              <Table.Td>{each.theirs || "–"}</Table.Td>
              <Table.Td>{each.mine || "–"}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Alert>
  );
}
