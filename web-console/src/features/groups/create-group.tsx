import { Stack, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { createGroup, groupKeys } from "@/api/groups";
import { gantryCommand } from "@/models/commands";
import { isPolicy, NEW_GROUP, optionsOf, SETTINGS, toChange } from "@/models/groups";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { Problem } from "@/ui/problem";
import { SettingsFields } from "./settings-form";

/** Creates a group and opens its page; a name that exists is refused, and nothing of that group changes. */
export function CreateGroup({ onClose }: { onClose: () => void }) {
  const { t } = useTranslation("groups");
  const client = useQueryClient();
  const navigate = useNavigate();
  const [name, setName] = useState("");
  const [settings, setSettings] = useState(NEW_GROUP);
  const hasPolicy = isPolicy(settings.retry_policy);
  // A setting that equals the contract's default is left out, so that the group follows it.
  const names = SETTINGS.filter((setting) => settings[setting] !== NEW_GROUP[setting]);
  const body = hasPolicy ? toChange(settings, names) : {};
  const create = useMutation({
    mutationFn: () => createGroup(name, body),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: groupKeys.all });
      notifications.show({ message: t("create.done", { name }), color: "green" });
      onClose();
      void navigate({ to: "/groups/$group", params: { group: name } });
    },
  });
  const error = create.error === null ? null : asApiError(create.error);
  const field = error?.problem?.field;
  const wrongName =
    error?.kind === "version-conflict" ? t("create.taken", { name }) : (error?.detailOf("group") ?? null);
  const isShown = wrongName !== null || SETTINGS.some((setting) => (error?.detailOf(setting) ?? null) !== null);
  const refused = hasPolicy
    ? field === undefined
      ? null
      : { field, detail: error?.problem?.detail ?? "" }
    : { field: "retry_policy", detail: t("help.wrongPolicy") };
  return (
    <Dialog opened onClose={onClose} title={t("create.title")} size="lg">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          create.mutate();
        }}
      >
        <Stack>
          {error !== null && !isShown && <Problem error={error} />}
          <TextInput
            label={t("name")}
            required
            data-autofocus
            autoComplete="off"
            value={name}
            error={wrongName}
            onChange={(event) => {
              setName(event.currentTarget.value);
            }}
          />
          <SettingsFields settings={settings} onChange={setSettings} refused={refused} />
          <FormEnd
            copy={{
              call: {
                method: "PUT",
                path: "/v1/groups/{group}",
                values: { group: name },
                body,
                headers: { "If-None-Match": "*" },
              },
              gantry: gantryCommand("group", "create", name, "--new", ...optionsOf(settings, names)),
            }}
            onBack={onClose}
            submit={{ label: t("create.submit"), isReady: hasPolicy, isBusy: create.isPending }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}
