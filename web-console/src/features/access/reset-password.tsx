import { PasswordInput, Stack, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { changeUser, userKeys } from "@/api/users";
import { gantryCommand } from "@/models/commands";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { useCaller } from "@/ui/session";
import { AccessProblem } from "./access-problem";

/** Gives a user another password. The commands to copy ask for it on the terminal. */
export function ResetPassword({ user, onClose }: { user: string; onClose: () => void }) {
  const { t } = useTranslation("access");
  const client = useQueryClient();
  const isSelf = useCaller()?.user === user;
  const [password, setPassword] = useState("");
  const reset = useMutation({
    mutationFn: () => changeUser(user, { password }),
    onSuccess: async () => {
      notifications.show({ message: t("users.reset.done", { name: user }), color: "green" });
      onClose();
      await client.invalidateQueries({ queryKey: userKeys.all });
    },
  });
  const error = reset.error === null ? null : asApiError(reset.error);
  const wrong = error?.detailOf("password") ?? null;
  return (
    <Dialog opened onClose={onClose} title={t("users.reset.title", { name: user })}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          reset.mutate();
        }}
      >
        <Stack>
          {error !== null && wrong === null && <AccessProblem error={error} />}
          <PasswordInput
            label={t("users.newPassword")}
            description={t("users.passwordRule")}
            autoComplete="new-password"
            required
            data-autofocus
            value={password}
            error={wrong}
            onChange={(event) => {
              setPassword(event.currentTarget.value);
            }}
          />
          <Text size="sm">{t(isSelf ? "users.youAreLoggedOut" : "users.isLoggedOut", { name: user })}</Text>
          <FormEnd
            copy={{
              call: {
                method: "PUT",
                path: "/v1/users/{user}",
                values: { user },
                headers: { "If-Match": "*" },
                prompted: "password",
              },
              gantry: gantryCommand("user", "password", user),
            }}
            onBack={onClose}
            submit={{ label: t("users.reset.submit"), isBusy: reset.isPending }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}
