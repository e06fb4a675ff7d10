import { Checkbox, NativeSelect, SimpleGrid, TextInput } from "@mantine/core";
import { useTranslation } from "react-i18next";
import type { SettingName, TopicSettings } from "@/models/topics";

const PERMS = ["rw", "r", "w", "none"] as const;

/** The fields of a topic's settings. `refused` names the field that the gateway refused, with its reason. */
export function SettingsFields({
  settings,
  onChange,
  refused,
}: {
  settings: TopicSettings;
  onChange: (settings: TopicSettings) => void;
  refused?: { field: string; detail: string } | null;
}) {
  const { t } = useTranslation("topics");
  const set = (name: SettingName, value: string | boolean) => {
    onChange({ ...settings, [name]: value });
  };
  const errorOf = (name: SettingName) =>
    refused?.field === `/${name}` || refused?.field === name ? refused.detail : null;
  return (
    <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
      {(["read_queues", "write_queues"] as const).map((name) => (
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
      <NativeSelect
        label={t("setting.perm")}
        value={settings.perm}
        error={errorOf("perm")}
        data={PERMS.map((perm) => ({ value: perm, label: t(`perm.${perm}`) }))}
        onChange={(event) => {
          set("perm", event.currentTarget.value);
        }}
      />
      <TextInput
        label={t("setting.duplicate_window")}
        description={t("help.duplicate_window")}
        placeholder="10m"
        value={settings.duplicate_window}
        error={errorOf("duplicate_window")}
        onChange={(event) => {
          set("duplicate_window", event.currentTarget.value);
        }}
      />
      <TextInput
        label={t("setting.brokers")}
        description={t("help.brokers")}
        value={settings.brokers}
        error={errorOf("brokers")}
        onChange={(event) => {
          set("brokers", event.currentTarget.value);
        }}
      />
      <Checkbox
        mt={{ base: 0, sm: 28 }}
        label={t("setting.order")}
        checked={settings.order}
        onChange={(event) => {
          set("order", event.currentTarget.checked);
        }}
      />
    </SimpleGrid>
  );
}
