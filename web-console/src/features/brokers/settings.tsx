import { Alert, Group, Stack, Switch, Table, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import type { Schema } from "@/api/types";
import {
  changesOf,
  edited,
  findSettings,
  rebased,
  toRequest,
  type Edits,
  type Setting,
  type SettingChange,
} from "@/models/broker-settings";
import { gantryCommand } from "@/models/commands";
import { useConfirm } from "@/ui/confirm";
import { CopyAs, type Copyable } from "@/ui/copy-as";
import { FormEnd } from "@/ui/form-end";
import { Empty, QueryState } from "@/ui/page-frame";
import { Problem } from "@/ui/problem";
import { useOperations, useRole } from "@/ui/session";
import { SearchField, useTyped } from "@/ui/typing";
import { useUrlState } from "@/ui/url-state";
import { changeSettings, keys, settingsQuery } from "./queries";
import { SettingsTable } from "./settings-table";

type Differences = NonNullable<Schema<"Problem">["differences"]>;

/** The settings of a broker: search, edit what takes effect at once, and see the difference before it is saved. */
export function Settings({ broker }: { broker: string }) {
  const query = useQuery(settingsQuery(broker));
  return <QueryState query={query}>{(settings) => <Editor broker={broker} settings={settings} />}</QueryState>;
}

function Editor({ broker, settings }: { broker: string; settings: Setting[] }) {
  const { t } = useTranslation("brokers");
  const has = useOperations();
  const mayChange = useRole("operator") && has(["PUT /v1/brokers/{broker}/settings"]);
  const [url, setUrl] = useUrlState({ q: "", live: "no", changed: "no" });
  const search = useTyped(url.q, (q) => {
    setUrl({ q });
  });
  const [edits, setEdits] = useState<Edits>({});
  const [others, setOthers] = useState<Differences>([]);
  const confirm = useConfirm();
  const client = useQueryClient();
  const changes = changesOf(settings, edits);
  const save = useMutation({
    mutationFn: () => changeSettings(broker, toRequest(changes)),
    onSuccess: (items) => {
      client.setQueryData(settingsQuery(broker).queryKey, items);
      setEdits({});
      setOthers([]);
      notifications.show({ message: t("settings.saved"), color: "green" });
    },
    onError: async (error) => {
      const { kind, problem } = asApiError(error);
      if (kind !== "settings-changed") return;
      // The own changes stay; the next save compares with the values that the others have set.
      const theirs = problem?.differences ?? [];
      setOthers(theirs);
      setEdits((old) => rebased(old, theirs));
      await client.invalidateQueries({ queryKey: keys.part(broker, "settings") });
    },
  });
  const copy = copyOf(broker, changes);
  const ask = async () => {
    const agreed = await confirm({
      title: t("settings.confirm", { name: broker }),
      effects: [
        ...changes.map(({ name, before, after }) => t("settings.effect", { name, before, after })),
        t("settings.kept", { name: broker }),
      ],
      action: t("settings.save"),
      copy,
    });
    if (agreed) save.mutate();
  };
  const error = save.error === null ? null : asApiError(save.error);
  const found = findSettings(settings, {
    search: search.text,
    onlyLive: url.live === "yes",
    onlyChanged: url.changed === "yes",
  });
  const flag = (name: "live" | "changed") => (
    <Switch
      label={t(`settings.only.${name}`)}
      checked={url[name] === "yes"}
      onChange={(event) => {
        setUrl({ [name]: event.currentTarget.checked ? "yes" : "no" });
      }}
    />
  );
  return (
    <Stack gap="sm">
      <Group>
        <SearchField label={t("settings.search")} typed={search} maw={320} />
        {flag("live")}
        {flag("changed")}
        <CopyAs
          call={{ method: "GET", path: "/v1/brokers/{broker}/settings", values: { broker } }}
          gantry={gantryCommand("broker", "settings", broker)}
        />
      </Group>
      {error !== null && error.kind !== "settings-changed" && <Problem error={error} />}
      {others.length > 0 && <OthersChanges differences={others} edits={edits} />}
      {changes.length > 0 && (
        <Pending
          changes={changes}
          copy={copy}
          isSaving={save.isPending}
          onDiscard={() => {
            setEdits({});
            setOthers([]);
            save.reset();
          }}
          onSave={() => void ask()}
        />
      )}
      {found.length === 0 ? (
        <Empty>{t("settings.none")}</Empty>
      ) : (
        <SettingsTable
          settings={found}
          edits={edits}
          mayChange={mayChange}
          onEdit={(setting, value) => {
            setEdits((old) => edited(old, setting, value));
            // What was refused is no longer what would be saved.
            if (save.isError) save.reset();
          }}
        />
      )}
    </Stack>
  );
}

/** A change as commands, which the broker refuses if somebody else was faster. */
function copyOf(broker: string, changes: SettingChange[]): Copyable {
  const pair = (name: string, value: string) => `${name}=${value}`;
  const path = "/v1/brokers/{broker}/settings";
  return {
    call: { method: "PUT", path, values: { broker }, body: toRequest(changes) },
    gantry: gantryCommand(
      "broker",
      "set",
      broker,
      ...changes.map(({ name, after }) => pair(name, after)),
      ...changes.flatMap(({ name, before }) => ["--expect", pair(name, before)]),
    ),
  };
}

/** The difference that a save would make. */
function Pending({
  changes,
  copy,
  isSaving,
  onDiscard,
  onSave,
}: {
  changes: SettingChange[];
  copy: Copyable;
  isSaving: boolean;
  onDiscard: () => void;
  onSave: () => void;
}) {
  const { t } = useTranslation("brokers");
  return (
    <div className="panel" style={{ padding: 12 }}>
      <Stack gap="sm">
        <Table aria-label={t("settings.diff")}>
          <Table.Thead>
            <Table.Tr>
              <Table.Th>{t("settings.name")}</Table.Th>
              <Table.Th>{t("settings.before")}</Table.Th>
              <Table.Th>{t("settings.after")}</Table.Th>
            </Table.Tr>
          </Table.Thead>
          <Table.Tbody>
            {changes.map(({ name, before, after }) => (
              <Table.Tr key={name} style={{ overflowWrap: "anywhere" }}>
                <Table.Td>{name}</Table.Td>
                <Table.Td>
                  <del>{before || "–"}</del>
                </Table.Td>
                <Table.Td>
                  <ins style={{ fontWeight: 600, textDecoration: "none" }}>{after || "–"}</ins>
                </Table.Td>
              </Table.Tr>
            ))}
          </Table.Tbody>
        </Table>
        <FormEnd
          copy={{ label: t("settings.copy"), ...copy }}
          back={{ label: t("settings.discard") }}
          onBack={onDiscard}
          submit={{ label: t("settings.save"), isBusy: isSaving, onClick: onSave }}
        />
      </Stack>
    </div>
  );
}

function OthersChanges({ differences, edits }: { differences: Differences; edits: Edits }) {
  const { t } = useTranslation("brokers");
  return (
    <Alert role="alert" color="orange" variant="light" title={t("conflict.title")}>
      <Text size="sm" mb={6}>
        {t("conflict.detail")}
      </Text>
      <Table aria-label={t("conflict.title")}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>{t("settings.name")}</Table.Th>
            <Table.Th>{t("conflict.read")}</Table.Th>
            <Table.Th>{t("conflict.theirs")}</Table.Th>
            <Table.Th>{t("conflict.mine")}</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {differences.map((each) => (
            <Table.Tr key={each.name} style={{ overflowWrap: "anywhere" }}>
              <Table.Td>{each.name}</Table.Td>
              <Table.Td>{each.expected}</Table.Td>
              <Table.Td>{each.actual}</Table.Td>
              <Table.Td>{edits[each.name]?.after ?? "–"}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Alert>
  );
}
