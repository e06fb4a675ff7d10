import { Checkbox, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { useTranslation } from "react-i18next";
import type { GroupSettings, SettingName } from "@/models/groups";

const NUMBERS = ["retry_max_times", "retry_queues", "consume_timeout_minutes"] as const;
const SWITCHES = ["consume", "orderly", "from_min", "broadcast", "notify_changes"] as const;

/** The fields of a group's settings. `refused` names the field that the gateway refused, with its reason. */
export function SettingsFields({
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
