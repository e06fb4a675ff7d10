import { PasswordInput, Stack, Text } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { Dialog } from "./dialog";
import { asApiError } from "@/api/api-error";
import { changePassword } from "@/api/session";
import { userKeys } from "@/api/users";
import { ownPasswordCommand } from "@/models/commands";
import { FormEnd } from "./form-end";
import { Problem } from "./problem";

/** Changes the caller's own password, which ends the caller's other sessions. The commands log in, because no key can. */
export function ChangePassword({ user, onClose }: { user: string; onClose: () => void }) {
  const { t } = useTranslation("session");
  const client = useQueryClient();
  const [present, setPresent] = useState("");
  const [next, setNext] = useState("");
  const [again, setAgain] = useState("");
  const change = useMutation({
    mutationFn: () => changePassword(present, next),
    onSuccess: async () => {
      notifications.show({ message: t("change.done"), color: "green" });
      onClose();
      await client.invalidateQueries({ queryKey: userKeys.all });
    },
  });
  const error = change.error === null ? null : asApiError(change.error);
  const wrong = { present: error?.detailOf("password") ?? null, next: error?.detailOf("new_password") ?? null };
  const differs = again !== "" && again !== next;
  const fields = [
    { name: "password", label: t("change.present"), value: present, set: setPresent, error: wrong.present },
    { name: "new_password", label: t("change.next"), value: next, set: setNext, error: wrong.next },
    {
      name: "again",
      label: t("change.again"),
      value: again,
      set: setAgain,
      error: differs ? t("change.differs") : null,
    },
  ];
  return (
    <Dialog opened onClose={onClose} title={t("change.title")}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (again === next) change.mutate();
        }}
      >
        {/* Password managers look for the name of the user. */}
        <input hidden readOnly name="username" autoComplete="username" value={user} />
        <Stack>
          {error !== null && wrong.present === null && wrong.next === null && <Problem error={error} />}
          {fields.map((field) => (
            <PasswordInput
              key={field.name}
              label={field.label}
              description={field.name === "new_password" ? t("change.rule") : undefined}
              autoComplete={field.name === "password" ? "current-password" : "new-password"}
              required
              data-autofocus={field.name === "password" || undefined}
              value={field.value}
              error={field.error}
              onChange={(event) => {
                field.set(event.currentTarget.value);
              }}
            />
          ))}
          <Text size="sm">{t("change.effect")}</Text>
          <FormEnd
            copy={{ call: (origin) => ownPasswordCommand(user, origin) }}
            onBack={onClose}
            submit={{ label: t("change.submit"), isBusy: change.isPending }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}
