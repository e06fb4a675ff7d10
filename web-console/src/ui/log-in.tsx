import { Alert, Button, Center, Paper, PasswordInput, Stack, Text, TextInput, Title } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useEffect, useState, type ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { Dialog } from "./dialog";
import { asApiError } from "@/api/api-error";
import { logIn } from "@/api/session";
import { Logo } from "./logo";
import { Problem } from "./problem";

/** The whole page before the first log-in. The address stays, so the reader gets to the page that the link named. */
export function LogInPage() {
  const { t } = useTranslation("session");
  useEffect(() => {
    document.title = `${t("title")} · Gantry`;
  }, [t]);
  return (
    <Center component="main" mih="100dvh" p="md">
      <Paper withBorder p="xl" w="100%" maw={380}>
        <Stack>
          <Logo />
          <Title order={1}>{t("title")}</Title>
          <LogInForm />
          <Text size="xs" c="dimmed">
            {t("hint")}
          </Text>
        </Stack>
      </Paper>
    </Center>
  );
}

/** The dialog over a page whose session has ended. The page below keeps everything that was typed into it. */
export function LogInAgain() {
  const { t } = useTranslation("session");
  return (
    <Dialog opened onClose={() => undefined} withCloseButton={false} closeOnEscape={false} title={t("again")}>
      <Stack>
        <Text size="sm">{t("againDetail")}</Text>
        <LogInForm />
      </Stack>
    </Dialog>
  );
}

function LogInForm() {
  const { t } = useTranslation("session");
  const client = useQueryClient();
  const [user, setUser] = useState("");
  const [password, setPassword] = useState("");
  const attempt = useMutation({
    mutationFn: () => logIn(user, password),
    onSuccess: () => {
      // They tell of requests of a session that ended, perhaps that of another user.
      notifications.clean();
      return client.invalidateQueries();
    },
    onError: () => {
      setPassword("");
    },
  });
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        attempt.mutate();
      }}
    >
      <Stack>
        {attempt.error !== null && <Refusal error={attempt.error} />}
        <TextInput
          label={t("user")}
          name="username"
          autoComplete="username"
          data-autofocus
          required
          value={user}
          onChange={(event) => {
            setUser(event.currentTarget.value);
          }}
        />
        <PasswordInput
          label={t("password")}
          name="password"
          autoComplete="current-password"
          required
          value={password}
          onChange={(event) => {
            setPassword(event.currentTarget.value);
          }}
        />
        <Button type="submit" loading={attempt.isPending} fullWidth>
          {t("submit")}
        </Button>
      </Stack>
    </form>
  );
}

function Refusal({ error }: { error: Error }): ReactNode {
  const { t } = useTranslation("session");
  const found = asApiError(error);
  const texts: Record<number, string> = {
    0: t("noAnswer"),
    401: t("wrong"),
    429: t("wait", { seconds: found.retryAfterSeconds ?? 60 }),
  };
  const text = texts[found.status];
  if (text === undefined) return <Problem error={error} />;
  return (
    <Alert role="alert" color="red" variant="light">
      {text}
    </Alert>
  );
}
