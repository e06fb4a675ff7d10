import { SimpleGrid, TextInput } from "@mantine/core";
import { useTranslation } from "react-i18next";
import type { ApiError } from "@/api/api-error";
import { LIMITS, type KeySettings } from "@/models/access";

/** The fields of a key that can change later: its name, its end and its limits. */
export function KeyFields<S extends KeySettings>({
  settings,
  onChange,
  error,
}: {
  settings: S;
  onChange: (settings: S) => void;
  error: ApiError | null;
}) {
  const { t } = useTranslation("access");
  const set = (name: keyof KeySettings, value: string) => {
    onChange({ ...settings, [name]: value });
  };
  return (
    <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
      <TextInput
        label={t("keys.name")}
        description={t("keys.help.name")}
        required
        data-autofocus
        autoComplete="off"
        value={settings.name}
        error={error?.detailOf("name")}
        onChange={(event) => {
          set("name", event.currentTarget.value);
        }}
      />
      <TextInput
        type="datetime-local"
        step={1}
        label={t("keys.ends")}
        description={t("keys.help.expires_at")}
        value={settings.expires_at}
        error={error?.detailOf("expires_at")}
        onChange={(event) => {
          set("expires_at", event.currentTarget.value);
        }}
      />
      {LIMITS.map((name) => (
        <TextInput
          key={name}
          label={t(`keys.limit.${name}`)}
          inputMode="numeric"
          placeholder={t("keys.noLimit")}
          autoComplete="off"
          value={settings[name]}
          error={error?.detailOf(`limits/${name}`)}
          onChange={(event) => {
            set(name, event.currentTarget.value);
          }}
        />
      ))}
    </SimpleGrid>
  );
}

/** Whether one of the fields above shows why the gateway refused. */
export function isShownByFields(error: ApiError): boolean {
  return ["name", "expires_at", ...LIMITS.map((name) => `limits/${name}`)].some(
    (field) => error.detailOf(field) !== null,
  );
}
