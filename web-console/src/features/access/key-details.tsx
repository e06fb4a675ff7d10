import { Button, Code, Group, Stack, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { apiKeyKeys, changeApiKey, revokeApiKey, rotateApiKey, type ApiKey } from "@/api/api-keys";
import { keyChangeOptions, LIMITS, rightsOf, settingsOfKey, toKeyChange } from "@/models/access";
import { gantryCommand } from "@/models/commands";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { useFormat } from "@/ui/format";
import { useOperations } from "@/ui/session";
import { Name } from "@/ui/value";
import { AccessProblem } from "./access-problem";
import { isShownByFields, KeyFields } from "./key-fields";
import { Secret } from "./secret";
import { useAction } from "./use-action";

const OVERLAP = "24h";

/** One API key: what it may do, and how it changes, gets another secret, and ends. */
export function KeyDetails({ apiKey, state }: { apiKey: ApiKey; state: ReactNode }) {
  const has = useOperations();
  const [open, setOpen] = useState<"change" | "rotate" | null>(null);
  const close = () => {
    setOpen(null);
  };
  return (
    <Stack gap="lg">
      <Facts apiKey={apiKey} state={state} />
      {apiKey.revoked_at === null && (
        <Actions
          apiKey={apiKey}
          onChange={
            has(["PUT /v1/keys/{id}"])
              ? () => {
                  setOpen("change");
                }
              : null
          }
          onRotate={
            has(["POST /v1/keys/{id}:rotate"])
              ? () => {
                  setOpen("rotate");
                }
              : null
          }
        />
      )}
      {open === "change" && <Change apiKey={apiKey} onClose={close} />}
      {open === "rotate" && <Rotate apiKey={apiKey} onClose={close} />}
    </Stack>
  );
}

function Facts({ apiKey, state }: { apiKey: ApiKey; state: ReactNode }) {
  const { t } = useTranslation("access");
  const format = useFormat();
  const rights = rightsOf(apiKey);
  const patterns = (["publish", "topics", "groups"] as const).filter((name) => rights[name].length > 0);
  const flags = (["admin", "metrics"] as const).filter((name) => rights[name]);
  const limits = LIMITS.filter((name) => typeof apiKey.limits[name] === "number");
  const facts: [string, ReactNode][] = [
    [t("keys.id"), <Code key="id">{apiKey.id}</Code>],
    [t("users.state"), state],
    ...patterns.map((name): [string, ReactNode] => [
      t(`keys.field.${name}`),
      <Name key={name}>{rights[name].join(", ")}</Name>,
    ]),
    ...(flags.length === 0
      ? []
      : [[t("keys.also"), flags.map((name) => t(`keys.field.${name}`)).join(", ")] as [string, ReactNode]]),
    ...limits.map((name): [string, ReactNode] => [t(`keys.limit.${name}`), format.count(apiKey.limits[name])]),
    [t("created"), format.time(apiKey.created_at)],
    [t("keys.used"), format.time(apiKey.last_used_at) ?? t("keys.notUsed")],
    [t("keys.ends"), format.time(apiKey.expires_at) ?? t("keys.never")],
    ...(apiKey.rotated_at === null ? [] : [[t("keys.rotated"), format.time(apiKey.rotated_at)] as [string, ReactNode]]),
    ...(apiKey.previous_valid_until === null
      ? []
      : [[t("keys.previous"), format.time(apiKey.previous_valid_until)] as [string, ReactNode]]),
    ...(apiKey.revoked_at === null ? [] : [[t("keys.revoked"), format.time(apiKey.revoked_at)] as [string, ReactNode]]),
  ];
  return (
    <dl className="facts">
      {facts.map(([label, value]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Actions({
  apiKey,
  onChange,
  onRotate,
}: {
  apiKey: ApiKey;
  onChange: (() => void) | null;
  onRotate: (() => void) | null;
}) {
  const { t } = useTranslation("access");
  const has = useOperations();
  const { act, isPending, error } = useAction(apiKeyKeys.all);
  const revoke = () =>
    act({
      confirmation: {
        title: t("keys.revoke.title", { name: apiKey.name }),
        effects: [t("keys.revoke.effect", { name: apiKey.name, id: apiKey.id }), t("keys.revoke.final")],
        action: t("keys.revoke.submit"),
        isDangerous: true,
        typed: apiKey.name,
        copy: {
          call: { method: "DELETE", path: "/v1/keys/{id}", values: { id: apiKey.id } },
          gantry: gantryCommand("key", "revoke", apiKey.id),
        },
      },
      run: () => revokeApiKey(apiKey.id),
      done: t("keys.revoke.done", { name: apiKey.name }),
    });
  return (
    <Stack gap="sm">
      {error !== null && <AccessProblem error={error} />}
      <Group gap="xs">
        {onChange !== null && (
          <Button size="xs" variant="default" onClick={onChange}>
            {t("keys.change.open")}
          </Button>
        )}
        {onRotate !== null && (
          <Button size="xs" variant="default" onClick={onRotate}>
            {t("keys.rotate.open")}
          </Button>
        )}
        {has(["DELETE /v1/keys/{id}"]) && (
          <Button size="xs" variant="light" color="red" disabled={isPending} onClick={() => void revoke()}>
            {t("keys.revoke.submit")}
          </Button>
        )}
      </Group>
    </Stack>
  );
}

function Change({ apiKey, onClose }: { apiKey: ApiKey; onClose: () => void }) {
  const { t } = useTranslation("access");
  const client = useQueryClient();
  const [before] = useState(() => settingsOfKey(apiKey));
  const [settings, setSettings] = useState(before);
  const change = toKeyChange(before, settings);
  const save = useMutation({
    mutationFn: () => changeApiKey(apiKey.id, change ?? {}),
    onSuccess: async () => {
      onClose();
      await client.invalidateQueries({ queryKey: apiKeyKeys.all });
    },
  });
  const error = save.error === null ? null : asApiError(save.error);
  return (
    <Dialog opened onClose={onClose} title={t("keys.change.title", { name: apiKey.name })} size="lg">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          save.mutate();
        }}
      >
        <Stack>
          {error !== null && !isShownByFields(error) && <AccessProblem error={error} />}
          <KeyFields settings={settings} onChange={setSettings} error={error} />
          <FormEnd
            copy={{
              call: { method: "PUT", path: "/v1/keys/{id}", values: { id: apiKey.id }, body: change ?? {} },
              gantry: gantryCommand("key", "set", apiKey.id, ...keyChangeOptions(change ?? {})),
            }}
            onBack={onClose}
            submit={{ label: t("common:settings.save"), isReady: change !== null, isBusy: save.isPending }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}

function Rotate({ apiKey, onClose }: { apiKey: ApiKey; onClose: () => void }) {
  const { t } = useTranslation("access");
  const client = useQueryClient();
  const [overlap, setOverlap] = useState(OVERLAP);
  const rotate = useMutation({
    mutationFn: () => rotateApiKey(apiKey.id, overlap.trim()),
    // The cache of changes would keep the secret for minutes.
    gcTime: 0,
    onSuccess: () => client.invalidateQueries({ queryKey: apiKeyKeys.all }),
  });
  if (rotate.data !== undefined) return <Secret made={rotate.data} onClose={onClose} />;
  const error = rotate.error === null ? null : asApiError(rotate.error);
  const wrong = error?.detailOf("overlap") ?? null;
  return (
    <Dialog opened onClose={onClose} title={t("keys.rotate.title", { name: apiKey.name })}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          rotate.mutate();
        }}
      >
        <Stack>
          {error !== null && wrong === null && <AccessProblem error={error} />}
          <TextInput
            label={t("keys.rotate.overlap")}
            description={t("keys.help.overlap")}
            required
            data-autofocus
            autoComplete="off"
            value={overlap}
            error={wrong}
            onChange={(event) => {
              setOverlap(event.currentTarget.value);
            }}
          />
          <FormEnd
            copy={{
              call: {
                method: "POST",
                path: "/v1/keys/{id}:rotate",
                values: { id: apiKey.id },
                body: { overlap: overlap.trim() },
              },
              gantry: gantryCommand("key", "rotate", apiKey.id, "--overlap", overlap.trim()),
            }}
            onBack={onClose}
            submit={{ label: t("keys.rotate.submit"), isBusy: rotate.isPending }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}
