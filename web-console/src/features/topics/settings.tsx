import { Checkbox, Stack } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { changeTopic, getTopic, topicKeys, type Topic } from "@/api/topics";
import { gantryCommand, type Call } from "@/models/commands";
import { optionsOf, SETTINGS, toChange, toSettings, type SettingName, type TopicSettings } from "@/models/topics";
import { useConfirm } from "@/ui/confirm";
import { FormEnd } from "@/ui/form-end";
import { Problem } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { OthersChanges, SettingsDiff } from "@/ui/settings-changes";
import { useVersionedSettings } from "@/ui/versioned-settings";
import { SettingsFields } from "./settings-form";

/** The settings of a topic: a change shows its difference before it is saved. */
export function Settings({ topic, etag }: { topic: Topic; etag: string | null }) {
  const { t } = useTranslation("topics");
  const has = useOperations();
  const isOperator = useRole("operator");
  const mayChange = isOperator && has(["PUT /v1/topics/{topic}"]);
  const [isHiding, setHiding] = useState(false);
  const confirm = useConfirm();
  const client = useQueryClient();
  const bodyOf = (settings: TopicSettings, names: readonly SettingName[]) => ({
    ...toChange(settings, names),
    ...(isHiding ? { allow_hiding: true } : {}),
  });
  const form = useVersionedSettings({
    names: SETTINGS,
    first: { settings: toSettings(topic), etag: etag ?? "" },
    put: async (settings, names, read) => {
      const { data, etag: next } = await changeTopic(topic.topic, bodyOf(settings, names), read);
      return { settings: toSettings(data), etag: next ?? "" };
    },
    get: async () => {
      const { data, etag: next } = await getTopic(topic.topic);
      return { settings: toSettings(data), etag: next ?? "" };
    },
    onSaved: () => {
      setHiding(false);
      return client.invalidateQueries({ queryKey: topicKeys.all });
    },
  });
  const { read, mine, changed, save, error } = form;
  const labelOf = (name: string) => t(`setting.${name}`);
  const names = changed.map(({ name }) => name);
  const call: Call = {
    method: "PUT",
    path: "/v1/topics/{topic}",
    values: { topic: topic.topic },
    body: bodyOf(mine, names),
    headers: { "If-Match": read.etag },
  };
  const words = [...optionsOf(mine, names), ...(isHiding ? ["--allow-hiding"] : [])];
  const copy = { call, gantry: gantryCommand("topic", "create", topic.topic, ...words) };
  const ask = async () => {
    const effects = changed.map(({ name, before, after }) =>
      t("common:settings.effect", { name: labelOf(name), before: before || "–", after: after || "–" }),
    );
    const agreed = await confirm({
      title: t("common:settings.confirm", { name: topic.topic }),
      effects: isHiding ? [...effects, t("settings.hides")] : effects,
      action: t("common:settings.save"),
      copy,
      isDangerous: isHiding,
    });
    if (agreed) save.mutate();
  };
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
        {error !== null && <Problem error={error} />}
        {form.others.length > 0 && <OthersChanges found={form.others} labelOf={labelOf} />}
        <fieldset disabled={!mayChange} style={{ border: 0, padding: 0, margin: 0 }}>
          <SettingsFields settings={mine} onChange={form.setMine} refused={form.refused} />
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
        {changed.length > 0 && <SettingsDiff changed={changed} labelOf={labelOf} />}
        {mayChange && (
          <FormEnd
            copy={copy}
            back={{ label: t("common:settings.discard"), isReady: changed.length > 0 }}
            onBack={() => {
              form.setMine(read.settings);
            }}
            submit={{ label: t("common:settings.save"), isReady: changed.length > 0, isBusy: save.isPending }}
          />
        )}
      </Stack>
    </form>
  );
}
