import { Alert, Button, Code, Group, Stack, Text } from "@mantine/core";
import { IconAlertTriangle, IconLock, IconPlugConnectedX } from "@tabler/icons-react";
import { notifications } from "@mantine/notifications";
import { useTranslation } from "react-i18next";
import { ApiError, asApiError } from "@/api/api-error";

const ICON_PX = 18;

/** The gateway gives no answers. Nothing has to be done: what waits for it goes on when it is back. */
export function GatewayAway() {
  return <Problem error={new ApiError(0, null, "")} />;
}

/** Returns a function that tells what an error means for the reader. */
function useDetail(): (error: ApiError) => string {
  const { t } = useTranslation();
  return (error) => {
    if (error.isInDoubt && error.problem === null) return t("error.inDoubt");
    if (error.isUnreachable) return t("error.unreachableDetail");
    return error.kind === "unauthenticated" ? t("error.sessionEndedDetail") : error.message;
  };
}

/**
 * Returns a function that tells of a change that failed, beside the page. The title says what did not happen; it is not
 * used where the change may have been made.
 */
export function useFailureNotice(): (title: string, error: unknown) => void {
  const { t } = useTranslation();
  const detailOf = useDetail();
  return (title, error) => {
    const found = asApiError(error);
    notifications.show({
      title: found.isInDoubt ? t("error.inDoubtTitle") : title,
      message: detailOf(found),
      color: "red",
      autoClose: false,
    });
  };
}

/** The place that shows an error of the API within a page: what happened, which field, and how to report it. */
export function Problem({ error, onRetry }: { error: unknown; onRetry?: () => void }) {
  const { t } = useTranslation();
  const found = asApiError(error);
  const detail = useDetail()(found);
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
          {detail}
        </Text>
        {found.isInDoubt && problem !== null && <Text size="sm">{t("error.inDoubt")}</Text>}
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
