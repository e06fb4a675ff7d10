import { Autocomplete, Checkbox, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { groupKeys } from "@/api/groups";
import { getObjective, putObjective } from "@/api/objectives";
import { gantryCommand } from "@/models/commands";
import {
  NO_OBJECTIVE,
  optionsOf,
  SETTINGS,
  toChange,
  toSettings,
  type ObjectiveSettings,
  type SettingName,
} from "@/models/objectives";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { QueryState } from "@/ui/page-frame";
import { Problem } from "@/ui/problem";
import { OthersChanges, SettingsDiff } from "@/ui/settings-changes";
import { useVersionedSettings } from "@/ui/versioned-settings";
import { objectiveQuery } from "./queries";
import { useTopicsOf } from "./topics-of";

interface Read {
  settings: ObjectiveSettings;
  etag: string;
}

/** Sets an objective. `topic` undefined is a new one, null that of all topics without an objective of their own. */
export function ObjectiveDialog({
  group,
  topic,
  onClose,
}: {
  group: string;
  topic: string | null | undefined;
  onClose: () => void;
}) {
  const { t } = useTranslation("groups");
  return (
    <Dialog
      opened
      onClose={onClose}
      title={t(topic === undefined ? "objective.newTitle" : "objective.title", { name: group })}
      size="lg"
    >
      {topic === undefined ? (
        <ObjectiveForm group={group} first={{ settings: NO_OBJECTIVE, etag: "" }} onClose={onClose} />
      ) : (
        <Existing group={group} topic={topic} onClose={onClose} />
      )}
    </Dialog>
  );
}

function Existing({ group, topic, onClose }: { group: string; topic: string | null; onClose: () => void }) {
  const query = useQuery(objectiveQuery(group, topic));
  return (
    <QueryState query={query}>
      {(read) => (
        <ObjectiveForm
          group={group}
          topic={topic}
          first={{ settings: toSettings(read.objective), etag: read.etag }}
          onClose={onClose}
        />
      )}
    </QueryState>
  );
}

function ObjectiveForm({
  group,
  topic: given,
  first,
  onClose,
}: {
  group: string;
  topic?: string | null;
  first: Read;
  onClose: () => void;
}) {
  const { t } = useTranslation("groups");
  const client = useQueryClient();
  const topics = useTopicsOf(group);
  const [typed, setTyped] = useState("");
  const topic = given === undefined ? typed.trim() || null : given;
  const form = useVersionedSettings<SettingName, ObjectiveSettings>({
    names: SETTINGS,
    first,
    put: async (settings, names, etag) => {
      const { data, etag: next } = await putObjective(group, topic, toChange(settings, names), etag);
      return { settings: toSettings(data), etag: next ?? "" };
    },
    get: async () => {
      const { data, etag } = await getObjective(group, topic);
      return { settings: toSettings(data), etag: etag ?? "" };
    },
    onSaved: async () => {
      onClose();
      await client.invalidateQueries({ queryKey: groupKeys.detail(group) });
    },
  });
  const { read, mine, changed, save } = form;
  const names = changed.map(({ name }) => name);
  const error = form.error === null ? null : asApiError(form.error);
  const isShown = ["topic", ...SETTINGS].some((name) => error !== null && error.detailOf(name) !== null);
  const labelOf = (name: string) => t(`objective.${name}`);
  const options = optionsOf(mine, names);
  const headers: Record<string, string> = read.etag === "" ? { "If-None-Match": "*" } : { "If-Match": read.etag };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        save.mutate();
      }}
    >
      <Stack>
        {error !== null && !isShown && <Problem error={error} />}
        {form.others.length > 0 && <OthersChanges found={form.others} labelOf={labelOf} />}
        <Autocomplete
          label={t("topic")}
          description={t("objective.topicHelp")}
          placeholder={t("objective.allTopics")}
          data={topics}
          value={given === undefined ? typed : (given ?? "")}
          // The version that was read is one of this topic.
          disabled={given !== undefined || read.etag !== ""}
          error={error?.detailOf("topic")}
          onChange={setTyped}
        />
        <Fields settings={mine} onChange={form.setMine} errorOf={(name) => error?.detailOf(name) ?? null} />
        {read.etag !== "" && changed.length > 0 && <SettingsDiff changed={changed} labelOf={labelOf} />}
        <FormEnd
          copy={{
            call: {
              method: "PUT",
              path: "/v1/groups/{group}/objective",
              values: { group },
              query: { topic },
              body: toChange(mine, names),
              headers,
            },
            gantry:
              options === null
                ? undefined
                : gantryCommand(
                    ...["group", "objective", "set", group],
                    ...(topic === null ? [] : ["--topic", topic]),
                    ...options,
                  ),
          }}
          onBack={onClose}
          submit={{ label: t("common:settings.save"), isReady: changed.length > 0, isBusy: save.isPending }}
        />
      </Stack>
    </form>
  );
}

function Fields({
  settings,
  onChange,
  errorOf,
}: {
  settings: ObjectiveSettings;
  onChange: (settings: ObjectiveSettings) => void;
  errorOf: (name: SettingName) => string | null;
}) {
  const { t } = useTranslation("groups");
  const text = (name: "max_lag_seconds" | "max_lag_messages" | "reason") => (
    <TextInput
      label={t(`objective.${name}`)}
      description={t(`objective.help.${name}`)}
      inputMode={name === "reason" ? "text" : "decimal"}
      autoComplete="off"
      value={settings[name]}
      error={errorOf(name)}
      onChange={(event) => {
        onChange({ ...settings, [name]: event.currentTarget.value });
      }}
    />
  );
  return (
    <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
      {text("max_lag_seconds")}
      {text("max_lag_messages")}
      <Checkbox
        label={t("objective.ignore")}
        description={t("objective.help.ignore")}
        checked={settings.ignore}
        error={errorOf("ignore")}
        onChange={(event) => {
          const ignore = event.currentTarget.checked;
          onChange({ ...settings, ignore, ignore_until: ignore ? settings.ignore_until : "" });
        }}
      />
      {settings.ignore && (
        <TextInput
          type="datetime-local"
          label={t("objective.ignore_until")}
          description={t("objective.help.ignore_until")}
          value={settings.ignore_until}
          error={errorOf("ignore_until")}
          onChange={(event) => {
            onChange({ ...settings, ignore_until: event.currentTarget.value });
          }}
        />
      )}
      {text("reason")}
    </SimpleGrid>
  );
}
