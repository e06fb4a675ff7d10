import { Stack, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { createTopic, topicKeys } from "@/api/topics";
import { gantryCommand } from "@/models/commands";
import { NEW_TOPIC, SETTINGS, toChange } from "@/models/topics";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { Problem } from "@/ui/problem";
import { SettingsFields } from "./settings-form";

/** Creates a topic and opens its page. */
export function CreateTopic({ onClose }: { onClose: () => void }) {
  const { t } = useTranslation("topics");
  const client = useQueryClient();
  const navigate = useNavigate();
  const [name, setName] = useState("");
  const [settings, setSettings] = useState(NEW_TOPIC);
  const body = toChange(settings, SETTINGS);
  const create = useMutation({
    mutationFn: () => createTopic(name, body),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: topicKeys.all });
      notifications.show({ message: t("create.done", { name }), color: "green" });
      onClose();
      void navigate({ to: "/topics/$topic", params: { topic: name } });
    },
  });
  const problem = create.error === null ? null : asApiError(create.error).problem;
  const refused = problem?.field === undefined ? null : { field: problem.field, detail: problem.detail };
  return (
    <Dialog opened onClose={onClose} title={t("create.title")} size="lg">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          create.mutate();
        }}
      >
        <Stack>
          {create.error !== null && <Problem error={create.error} />}
          <TextInput
            label={t("name")}
            required
            data-autofocus
            autoComplete="off"
            value={name}
            onChange={(event) => {
              setName(event.currentTarget.value);
            }}
          />
          <SettingsFields settings={settings} onChange={setSettings} refused={refused} />
          <FormEnd
            copy={{
              call: {
                method: "PUT",
                path: "/v1/topics/{topic}",
                values: { topic: name },
                body,
                headers: { "If-None-Match": "*" },
              },
              gantry: gantryCommand(
                "topic",
                "create",
                name,
                "--new",
                "--read-queues",
                settings.read_queues,
                "--write-queues",
                settings.write_queues,
                "--perm",
                settings.perm,
                ...(settings.order ? ["--order"] : []),
                ...(body.duplicate_window ? ["--duplicate-window", settings.duplicate_window.trim()] : []),
                ...(body.brokers ?? []).flatMap((broker) => ["--broker", broker]),
              ),
            }}
            onBack={onClose}
            submit={{ label: t("create.submit"), isBusy: create.isPending }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}
