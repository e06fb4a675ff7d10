import { Button, Group, NativeSelect, Stack, Text, Title } from "@mantine/core";
import { useState, type ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { changeUser, deleteUser, userKeys, type User, type UserChange } from "@/api/users";
import { ROLES } from "@/models/access";
import { gantryCommand } from "@/models/commands";
import type { Role } from "@/models/roles";
import { useFormat } from "@/ui/format";
import { useCaller, useOperations } from "@/ui/session";
import { AccessProblem } from "./access-problem";
import { ResetPassword } from "./reset-password";
import { SessionTable } from "./session-table";
import { useAction } from "./use-action";
import { FailedLogIns, UserState } from "./user-state";

/** One user: role, password, whether it can log in, its sessions, and its end. */
export function UserDetails({ user, lastLogIn, onGone }: { user: User; lastLogIn: ReactNode; onGone: () => void }) {
  const { t } = useTranslation("access");
  const format = useFormat();
  const has = useOperations();
  const [isResetting, setResetting] = useState(false);
  const facts: [string, ReactNode][] = [
    [t("users.state"), <UserState key="state" user={user} />],
    [t("users.wait.title"), <FailedLogIns key="waits" user={user} />],
    ...(lastLogIn === null ? [] : [[t("users.lastLogIn"), lastLogIn] as [string, ReactNode]]),
    [t("users.passwordChanged"), format.time(user.password_changed_at)],
    [t("created"), format.time(user.created_at)],
  ];
  return (
    <Stack gap="lg">
      <dl className="facts">
        {facts.map(([label, value]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {has(["PUT /v1/users/{user}"]) && (
        <Changes
          user={user}
          onReset={() => {
            setResetting(true);
          }}
          onGone={onGone}
        />
      )}
      {has(["GET /v1/users/{user}/sessions"]) && (
        <Stack gap="xs" component="section" aria-label={t("tab.sessions")}>
          <Title order={2}>{t("tab.sessions")}</Title>
          <SessionTable user={user.user} />
        </Stack>
      )}
      {isResetting && (
        <ResetPassword
          user={user.user}
          onClose={() => {
            setResetting(false);
          }}
        />
      )}
    </Stack>
  );
}

function Changes({ user, onReset, onGone }: { user: User; onReset: () => void; onGone: () => void }) {
  const { t } = useTranslation("access");
  const has = useOperations();
  const name = user.user;
  const isSelf = useCaller()?.user === name;
  const [role, setRole] = useState<Role>(user.role);
  const { act, isPending, error } = useAction(userKeys.all);
  const loggedOut = t(isSelf ? "users.youAreLoggedOut" : "users.isLoggedOut", { name });
  const change = (body: UserChange, verb: "role" | "disable" | "enable", effects: string[], ...options: string[]) =>
    act({
      confirmation: {
        title: t(`users.${verb}.title`, { name }),
        effects,
        action: t(`users.${verb}.submit`),
        isDangerous: verb === "disable",
        copy: {
          call: { method: "PUT", path: "/v1/users/{user}", values: { user: name }, body, headers: { "If-Match": "*" } },
          gantry: gantryCommand("user", "change", name, ...options),
        },
      },
      run: () => changeUser(name, body),
      done: t(`users.${verb}.done`, { name }),
    });
  const remove = () =>
    act({
      confirmation: {
        title: t("users.delete.title", { name }),
        effects: [t("users.delete.effect", { name }), loggedOut, t("users.delete.trail")],
        action: t("users.delete.submit"),
        isDangerous: true,
        typed: name,
        copy: {
          call: { method: "DELETE", path: "/v1/users/{user}", values: { user: name } },
          gantry: gantryCommand("user", "delete", name),
        },
      },
      run: () => deleteUser(name),
      done: t("users.delete.done", { name }),
      after: onGone,
    });
  const toRole = () => {
    const names = { before: t(`common:role.${user.role}`), after: t(`common:role.${role}`) };
    return change({ role }, "role", [t("users.role.effect", { name, ...names }), loggedOut], "--role", role);
  };
  return (
    <Stack gap="sm">
      {error !== null && <AccessProblem error={error} />}
      <Group align="flex-end" gap="xs">
        <NativeSelect
          size="xs"
          label={t("users.role.label")}
          value={role}
          data={ROLES.map((value) => ({ value, label: t(`common:role.${value}`) }))}
          onChange={(event) => {
            setRole(event.currentTarget.value as Role);
          }}
        />
        <Button size="xs" variant="default" disabled={role === user.role || isPending} onClick={() => void toRole()}>
          {t("users.role.submit")}
        </Button>
        <Text size="xs" c="dimmed" style={{ flex: "1 1 12rem" }}>
          {t(`roles.about.${role}`)}
        </Text>
      </Group>
      <Group gap="xs">
        <Button size="xs" variant="default" onClick={onReset}>
          {t("users.reset.open")}
        </Button>
        {user.disabled ? (
          <Button
            size="xs"
            variant="default"
            disabled={isPending}
            onClick={() => void change({ disabled: false }, "enable", [t("users.enable.effect", { name })], "--enable")}
          >
            {t("users.enable.submit")}
          </Button>
        ) : (
          <Button
            size="xs"
            variant="default"
            disabled={isPending}
            onClick={() =>
              void change({ disabled: true }, "disable", [t("users.disable.effect", { name }), loggedOut], "--disable")
            }
          >
            {t("users.disable.submit")}
          </Button>
        )}
        {has(["DELETE /v1/users/{user}"]) && (
          <Button size="xs" variant="light" color="red" disabled={isPending} onClick={() => void remove()}>
            {t("users.delete.submit")}
          </Button>
        )}
      </Group>
    </Stack>
  );
}
