import { Checkbox, Fieldset, SimpleGrid, Stack, Text, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError, type ApiError } from "@/api/api-error";
import { apiKeyKeys, createApiKey } from "@/api/api-keys";
import { grantsSomething, NEW_KEY, newKeyOptions, toNewKey, type KeyForm } from "@/models/access";
import { gantryCommand } from "@/models/commands";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { AccessProblem } from "./access-problem";
import { isShownByFields, KeyFields } from "./key-fields";
import { Secret } from "./secret";

const PATTERNS = {
  publish: "rights/publish",
  topics: "rights/consume/topics",
  groups: "rights/consume/groups",
} as const;
const PATTERN_NAMES = ["publish", "topics", "groups"] as const;

/** Creates an API key and shows its secret, once. */
export function CreateKey({ onClose }: { onClose: () => void }) {
  const { t } = useTranslation("access");
  const client = useQueryClient();
  const [form, setForm] = useState(NEW_KEY);
  const body = toNewKey(form);
  const create = useMutation({
    mutationFn: () => createApiKey(body),
    // The cache of changes would keep the secret for minutes.
    gcTime: 0,
    onSuccess: () => client.invalidateQueries({ queryKey: apiKeyKeys.all }),
  });
  if (create.data !== undefined) return <Secret made={create.data} onClose={onClose} />;
  const error = create.error === null ? null : asApiError(create.error);
  const isShown =
    error !== null && (isShownByFields(error) || PATTERN_NAMES.some((name) => error.detailOf(PATTERNS[name]) !== null));
  return (
    <Dialog opened onClose={onClose} title={t("keys.create.title")} size="lg">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          create.mutate();
        }}
      >
        <Stack>
          {error !== null && !isShown && <AccessProblem error={error} />}
          <KeyFields settings={form} onChange={setForm} error={error} />
          <RightsFields form={form} onChange={setForm} error={error} />
          <FormEnd
            copy={{
              call: { method: "POST", path: "/v1/keys", body },
              gantry: gantryCommand("key", "create", form.name.trim(), ...newKeyOptions(form)),
            }}
            onBack={onClose}
            submit={{
              label: t("keys.create.submit"),
              isReady: grantsSomething(form),
              isBusy: create.isPending,
            }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}

function RightsFields({
  form,
  onChange,
  error,
}: {
  form: KeyForm;
  onChange: (form: KeyForm) => void;
  error: ApiError | null;
}) {
  const { t } = useTranslation("access");
  return (
    <Fieldset legend={t("keys.rights.title")}>
      <Stack gap="sm">
        <SimpleGrid cols={{ base: 1, sm: 3 }} spacing="sm">
          {PATTERN_NAMES.map((name) => (
            <TextInput
              key={name}
              label={t(`keys.field.${name}`)}
              placeholder="orders*"
              autoComplete="off"
              disabled={form.admin}
              value={form[name]}
              error={error?.detailOf(PATTERNS[name])}
              onChange={(event) => {
                onChange({ ...form, [name]: event.currentTarget.value });
              }}
            />
          ))}
        </SimpleGrid>
        <Text size="xs" c="dimmed">
          {t("keys.help.patterns")}
        </Text>
        {(["metrics", "admin"] as const).map((name) => (
          <Checkbox
            key={name}
            label={t(`keys.field.${name}`)}
            description={t(`rights.about.${name}`)}
            checked={form[name]}
            onChange={(event) => {
              onChange({ ...form, [name]: event.currentTarget.checked });
            }}
          />
        ))}
        {!grantsSomething(form) && (
          <Text size="sm" c="dimmed">
            {t("keys.help.grantOne")}
          </Text>
        )}
      </Stack>
    </Fieldset>
  );
}
