import { Alert, Button, Code, Group, Stack, Text } from "@mantine/core";
import { IconAlertTriangle, IconLock, IconPlugConnectedX } from "@tabler/icons-react";
import { useTranslation } from "react-i18next";
import { ApiError, asApiError } from "@/api/api-error";

const ICON_PX = 18;

/** The gateway gives no answers. Nothing has to be done: what waits for it goes on when it is back. */
export function GatewayAway() {
  return <Problem error={new ApiError(0, null, "")} />;
}

/** The one place that shows an error of the API: what happened, which field, and how to report it. */
export function Problem({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const { t } = useTranslation();
  const found = asApiError(error);
  const problem = found.problem;
  const isRefused = found.status === 403;
  // The log-in over the page says the rest. A request without a session has changed nothing.
  const isLoggedOut = found.kind === "unauthenticated";
  const title = found.isUnreachable
    ? t("error.unreachable")
    : isLoggedOut
      ? t("error.sessionEnded")
      : isRefused
        ? t("error.refused")
        : found.kind === "metadata-unavailable"
          ? t("error.metadata")
          : problem === null
            ? t("error.unexpected")
            : t(`problem.${found.kind}`, { defaultValue: problem.title });
  const Icon = found.isUnreachable ? IconPlugConnectedX : isRefused ? IconLock : IconAlertTriangle;
  return (
    <Alert
      role="alert"
      color={isRefused || isLoggedOut ? "gray" : "red"}
      variant="light"
      icon={<Icon size={ICON_PX} />}
      title={title}
    >
      <Stack gap="xs">
        <Text size="sm" style={{ overflowWrap: "anywhere" }}>
          {found.isUnreachable
            ? t("error.unreachableDetail")
            : isLoggedOut
              ? t("error.sessionEndedDetail")
              : found.message}
        </Text>
        {problem !== null && (
          <Text size="xs" c="dimmed">
            {t("error.request")} <Code>{problem.request_id}</Code>
          </Text>
        )}
        {onRetry !== undefined && (
          <Group>
            <Button size="xs" variant="default" onClick={onRetry}>
              {t("retry")}
            </Button>
          </Group>
        )}
      </Stack>
    </Alert>
  );
}
