import { Badge, Stack } from "@mantine/core";
import { useTranslation } from "react-i18next";
import type { User } from "@/api/users";
import { waitsOf } from "@/models/access";
import { useFormat } from "@/ui/format";
import { useNow } from "@/ui/now";
import { Name, When } from "@/ui/value";

/** Whether a user can log in: a disabled one can't, and after failed log-ins the next one has to wait. */
export function UserState({ user }: { user: User }) {
  const { t } = useTranslation("access");
  const isWaiting = waitsOf(user, useNow()).length > 0;
  const state = user.disabled ? "disabled" : isWaiting ? "waiting" : "active";
  return (
    <Badge variant="light" color={COLORS[state]} tt="none" radius="sm">
      {t(`users.${state}`)}
    </Badge>
  );
}

const COLORS = { disabled: "orange", waiting: "red", active: "green" } as const;

/** The failed log-ins after which a user has to wait: from where, and until when. */
export function FailedLogIns({ user }: { user: User }) {
  const { t } = useTranslation("access");
  const format = useFormat();
  const waits = waitsOf(user, useNow());
  if (waits.length === 0) return <>{t("users.wait.none")}</>;
  return (
    <Stack gap={2}>
      {waits.map((wait) => (
        <span key={wait.address}>
          {wait.address === null ? t("users.wait.anywhere") : <Name>{wait.address}</Name>}:{" "}
          {t("users.wait.failures", { count: wait.failures, shown: format.count(wait.failures) })}{" "}
          <When time={wait.until} />
        </span>
      ))}
    </Stack>
  );
}
