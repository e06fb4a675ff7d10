import { Button, Checkbox, Group as Row, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { changeGroup, getGroup, groupKeys, type Group } from "@/api/groups";
import { gantryCommand } from "@/models/commands";
import { isPolicy, SETTINGS, toChange, toSettings, type GroupSettings, type SettingName } from "@/models/groups";
import { useConfirm } from "@/ui/confirm";
import { CopyAs } from "@/ui/copy-as";
import { Problem } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { OthersChanges, SettingsDiff } from "@/ui/settings-changes";
import { useVersionedSettings } from "@/ui/versioned-settings";

const NUMBERS = ["retry_max_times", "retry_queues", "consume_timeout_minutes"] as const;
const SWITCHES = ["consume", "orderly", "from_min", "broadcast", "notify_changes"] as const;

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
  const ask = async () => {
    const agreed = await confirm({
      title: t("common:settings.confirm", { name: group.group }),
      effects: changed.map(({ name, before, after }) =>
        t("common:settings.effect", { name: labelOf(name), before: before || "–", after: after || "–" }),
      ),
      action: t("common:settings.save"),
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
          <Fields
            settings={mine}
            onChange={form.setMine}
            refused={hasPolicy ? form.refused : { field: "retry_policy", detail: t("help.wrongPolicy") }}
          />
        </fieldset>
        {changed.length > 0 && <SettingsDiff changed={changed} labelOf={labelOf} />}
        {mayChange && (
          <Row justify="space-between">
            <CopyAs
              call={{
                method: "PUT",
                path: "/v1/groups/{group}",
                values: { group: group.group },
                body: hasPolicy ? toChange(mine, names) : {},
                headers: { "If-Match": read.etag },
              }}
              gantry={gantryCommand("group", "create", group.group, ...names.flatMap((name) => optionOf(name, mine)))}
            />
            <Row>
              <Button
                variant="default"
                disabled={changed.length === 0}
                onClick={() => {
                  form.setMine(read.settings);
                }}
              >
                {t("common:settings.discard")}
              </Button>
              <Button type="submit" disabled={changed.length === 0 || !hasPolicy} loading={save.isPending}>
                {t("common:settings.save")}
              </Button>
            </Row>
          </Row>
        )}
      </Stack>
    </form>
  );
}

/** Returns the option of the command line for a setting. */
function optionOf(name: SettingName, settings: GroupSettings): string[] {
  const value = settings[name];
  const option = name.replaceAll("_", "-");
  if (typeof value === "boolean") return [value ? `--${option}` : `--no-${option}`];
  return value === "" ? [] : [`--${option}`, value];
}

function Fields({
  settings,
  onChange,
  refused,
}: {
  settings: GroupSettings;
  onChange: (settings: GroupSettings) => void;
  refused: { field: string; detail: string } | null;
}) {
  const { t } = useTranslation("groups");
  const errorOf = (name: SettingName) =>
    refused?.field === name || refused?.field.startsWith(`/${name}`) ? refused.detail : null;
  const set = (name: SettingName, value: string | boolean) => {
    onChange({ ...settings, [name]: value });
  };
  return (
    <Stack gap="md">
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
        {NUMBERS.map((name) => (
          <TextInput
            key={name}
            label={t(`setting.${name}`)}
            inputMode="numeric"
            value={settings[name]}
            error={errorOf(name)}
            onChange={(event) => {
              set(name, event.currentTarget.value);
            }}
          />
        ))}
        <TextInput
          label={t("setting.retry_policy")}
          description={t("help.retry_policy")}
          value={settings.retry_policy}
          error={errorOf("retry_policy")}
          onChange={(event) => {
            set("retry_policy", event.currentTarget.value);
          }}
        />
      </SimpleGrid>
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
        {SWITCHES.map((name) => (
          <Checkbox
            key={name}
            label={t(`setting.${name}`)}
            description={t(`help.${name}`)}
            checked={settings[name]}
            onChange={(event) => {
              set(name, event.currentTarget.checked);
            }}
          />
        ))}
      </SimpleGrid>
    </Stack>
  );
}
