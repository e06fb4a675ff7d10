import { NativeSelect, PasswordInput, Stack, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { createUser, userKeys } from "@/api/users";
import { ROLES } from "@/models/access";
import { gantryCommand } from "@/models/commands";
import type { Role } from "@/models/roles";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { AccessProblem } from "./access-problem";

const FIELDS = ["user", "role", "password"] as const;

/** Creates a user; a name that exists is refused, and nothing of that user changes. */
export function CreateUser({ onClose }: { onClose: () => void }) {
  const { t } = useTranslation("access");
  const client = useQueryClient();
  const [name, setName] = useState("");
  const [role, setRole] = useState<Role>("viewer");
  const [password, setPassword] = useState("");
  const create = useMutation({
    mutationFn: () => createUser(name, { role, password }),
    onSuccess: async () => {
      await client.invalidateQueries({ queryKey: userKeys.all });
      notifications.show({ message: t("users.create.done", { name }), color: "green" });
      onClose();
    },
  });
  const error = create.error === null ? null : asApiError(create.error);
  const isTaken = error?.kind === "version-conflict";
  const errorOf = (field: (typeof FIELDS)[number]) =>
    field === "user" && isTaken ? t("users.create.taken", { name }) : error?.detailOf(field);
  const isShown = FIELDS.some((field) => Boolean(errorOf(field)));
  return (
    <Dialog opened onClose={onClose} title={t("users.create.title")}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          create.mutate();
        }}
      >
        <Stack>
          {error !== null && !isShown && <AccessProblem error={error} />}
          <TextInput
            label={t("users.user")}
            description={t("users.nameRule")}
            required
            data-autofocus
            autoComplete="off"
            autoCapitalize="none"
            value={name}
            error={errorOf("user")}
            onChange={(event) => {
              setName(event.currentTarget.value);
            }}
          />
          <NativeSelect
            label={t("users.role.label")}
            description={t(`roles.about.${role}`)}
            value={role}
            error={errorOf("role")}
            data={ROLES.map((value) => ({ value, label: t(`common:role.${value}`) }))}
            onChange={(event) => {
              setRole(event.currentTarget.value as Role);
            }}
          />
          <PasswordInput
            label={t("users.password")}
            description={t("users.passwordRule")}
            autoComplete="new-password"
            required
            value={password}
            error={errorOf("password")}
            onChange={(event) => {
              setPassword(event.currentTarget.value);
            }}
          />
          <FormEnd
            copy={{
              call: {
                method: "PUT",
                path: "/v1/users/{user}",
                values: { user: name },
                body: { role },
                headers: { "If-None-Match": "*" },
                prompted: "password",
              },
              gantry: gantryCommand("user", "create", name, "--role", role),
            }}
            onBack={onClose}
            submit={{ label: t("users.create.submit"), isBusy: create.isPending }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}
