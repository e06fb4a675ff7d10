import { Stack } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { changeGroup, getGroup, groupKeys, type Group } from "@/api/groups";
import { gantryCommand, type Call } from "@/models/commands";
import {
  isPolicy,
  optionsOf,
  SETTINGS,
  toChange,
  toSettings,
  type GroupSettings,
  type SettingName,
} from "@/models/groups";
import { useConfirm } from "@/ui/confirm";
import { FormEnd } from "@/ui/form-end";
import { Problem } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { OthersChanges, SettingsDiff } from "@/ui/settings-changes";
import { useVersionedSettings } from "@/ui/versioned-settings";
import { SettingsFields } from "./settings-form";

/** The settings of a group: a change shows its difference before it is saved. */
export function Settings({ group, etag }: { group: Group; etag: string | null }) {
  const { t } = useTranslation("groups");
  const has = useOperations();
  const isOperator = useRole("operator");
  const mayChange = isOperator && has(["PUT /v1/groups/{group}"]);
  const confirm = useConfirm();
  const client = useQueryClient();
  const form = useVersionedSettings({
    names: SETTINGS,
    first: { settings: toSettings(group), etag: etag ?? "" },
    put: async (settings, names, read) => {
      const { data, etag: next } = await changeGroup(group.group, toChange(settings, names), read);
      return { settings: toSettings(data), etag: next ?? "" };
    },
    get: async () => {
      const { data, etag: next } = await getGroup(group.group);
      return { settings: toSettings(data), etag: next ?? "" };
    },
    onSaved: () => client.invalidateQueries({ queryKey: groupKeys.all }),
  });
  const { read, mine, changed, save } = form;
  const names = changed.map(({ name }) => name);
  const hasPolicy = isPolicy(mine.retry_policy);
  const labelOf = (name: string) => t(`setting.${name}`);
  const call: Call = {
    method: "PUT",
    path: "/v1/groups/{group}",
    values: { group: group.group },
    body: hasPolicy ? toChange(mine, names) : {},
    headers: { "If-Match": read.etag },
  };
  const copy = { call, gantry: commandOf(group.group, mine, names) };
  const ask = async () => {
    const agreed = await confirm({
      title: t("common:settings.confirm", { name: group.group }),
      effects: changed.map(({ name, before, after }) =>
        t("common:settings.effect", { name: labelOf(name), before: before || "–", after: after || "–" }),
      ),
      action: t("common:settings.save"),
      copy,
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
        {form.error !== null && <Problem error={form.error} />}
        {form.others.length > 0 && <OthersChanges found={form.others} labelOf={labelOf} />}
        <fieldset disabled={!mayChange} style={{ border: 0, padding: 0, margin: 0 }}>
          <SettingsFields
            settings={mine}
            onChange={form.setMine}
            refused={hasPolicy ? form.refused : { field: "retry_policy", detail: t("help.wrongPolicy") }}
          />
        </fieldset>
        {changed.length > 0 && <SettingsDiff changed={changed} labelOf={labelOf} />}
        {mayChange && (
          <FormEnd
            copy={copy}
            back={{ label: t("common:settings.discard"), isReady: changed.length > 0 }}
            onBack={() => {
              form.setMine(read.settings);
            }}
            submit={{
              label: t("common:settings.save"),
              isReady: changed.length > 0 && hasPolicy,
              isBusy: save.isPending,
            }}
          />
        )}
      </Stack>
    </form>
  );
}

/** The change as a command, which can't take a retry policy away. */
function commandOf(group: string, mine: GroupSettings, names: readonly SettingName[]): string | undefined {
  const isPolicyEnded = names.includes("retry_policy") && mine.retry_policy.trim() === "";
  return isPolicyEnded ? undefined : gantryCommand("group", "create", group, ...optionsOf(mine, names));
}
