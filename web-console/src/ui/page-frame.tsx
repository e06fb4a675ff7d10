import { Alert, Anchor, Breadcrumbs, Center, Group, Skeleton, Stack, Text, Title } from "@mantine/core";
import { IconClockExclamation, IconDatabaseOff } from "@tabler/icons-react";
import type { UseInfiniteQueryResult, UseQueryResult } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { useEffect, type ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { useIsGatewayLost } from "./contact";
import { GatewayAway, Problem } from "./problem";
import { Ago, Name } from "./value";

const ICON_PX = 18;
const LOADING_ROWS = 6;

export interface Crumb {
  label: string;
  to: string;
}

/** The frame of a page: title, where it belongs, actions, and content. It names the tab, too. */
export function PageFrame({
  title,
  crumbs = [],
  actions,
  description,
  children,
}: {
  title: string;
  crumbs?: Crumb[];
  actions?: ReactNode;
  description?: ReactNode;
  children: ReactNode;
}) {
  useEffect(() => {
    document.title = `${title} · Gantry`;
  }, [title]);
  return (
    <Stack gap="md" p={{ base: "sm", sm: "lg" }} maw={1800} mx="auto">
      <Group justify="space-between" align="flex-end" gap="sm">
        <Stack gap={4} miw={0}>
          {crumbs.length > 0 && (
            <Breadcrumbs component="nav" aria-label={title} fz="sm">
              {crumbs.map((crumb) => (
                <Anchor key={crumb.to} component={Link} to={crumb.to} fz="sm">
                  {crumb.label}
                </Anchor>
              ))}
            </Breadcrumbs>
          )}
          <Title order={1}>
            <Name>{title}</Name>
          </Title>
          {description !== undefined && (
            <Text size="sm" c="dimmed">
              {description}
            </Text>
          )}
        </Stack>
        {actions !== undefined && <Group gap="xs">{actions}</Group>}
      </Group>
      {children}
    </Stack>
  );
}

/**
 * The states of an answer: loading, error, refused, stale, empty, metadata unavailable, and the data itself. If a later
 * request fails, the last data stays, with its age and the error above it.
 */
export function QueryState<T>({
  query,
  select = (data) => data,
  empty,
  isEmpty,
  loading,
  children,
}: {
  query: UseQueryResult<T> | UseInfiniteQueryResult<T>;
  /** The part of the answer that may say that the metadata is unavailable; the answer itself by default. */
  select?: (data: T) => unknown;
  empty?: ReactNode;
  isEmpty?: (data: T) => boolean;
  /** A skeleton with the height of the data, so that nothing below it moves when the data comes; rows by default. */
  loading?: ReactNode;
  children: (data: T) => ReactNode;
}) {
  const { t } = useTranslation();
  const { data, error, isPending } = query;
  const isLost = useIsGatewayLost();
  const retry = () => void query.refetch();
  if (data === undefined) {
    return isPending && error === null ? <Loading>{loading}</Loading> : <Problem error={error} onRetry={retry} />;
  }
  const part = select(data);
  const isWithoutMetadata =
    typeof part === "object" && part !== null && "metadata" in part && part.metadata === "unavailable";
  return (
    <Stack gap="sm">
      {(error !== null || isLost) && (
        <Stale updatedAt={query.dataUpdatedAt} error={isLost ? null : error} onRetry={retry} />
      )}
      {isWithoutMetadata && (
        <Alert color="yellow" icon={<IconDatabaseOff size={ICON_PX} />} title={t("metadata.title")}>
          {t("metadata.detail")}
        </Alert>
      )}
      {isEmpty?.(data) ? <Empty>{empty ?? t("empty")}</Empty> : children(data)}
    </Stack>
  );
}

/** Something is on its way. While the gateway gives no answer, this says so instead. */
export function Loading({ children }: { children?: ReactNode }) {
  const { t } = useTranslation();
  if (useIsGatewayLost()) return <GatewayAway />;
  return (
    <Stack gap="xs" role="status" aria-label={t("loading")}>
      {children ?? Array.from({ length: LOADING_ROWS }, (_, row) => <Skeleton key={row} height={34} radius="sm" />)}
    </Stack>
  );
}

export function Empty({ children }: { children: ReactNode }) {
  return (
    <Center className="panel" mih={88} p="lg">
      <Text component="div" size="sm" c="dimmed" ta="center" maw={520}>
        {children}
      </Text>
    </Center>
  );
}

/** The age of what is shown, and why it is not renewed: an error, or null for a gateway that gives no answers. */
function Stale({ updatedAt, error, onRetry }: { updatedAt: number; error: Error | null; onRetry: () => void }) {
  const { t } = useTranslation();
  return (
    <Alert role="status" color="orange" icon={<IconClockExclamation size={ICON_PX} />} title={t("stale")}>
      <Group justify="space-between">
        <Text size="sm">
          {t("staleDetail")} <Ago time={updatedAt} />:{" "}
          {error === null || asApiError(error).isUnreachable ? t("error.noAnswer") : error.message}
        </Text>
        <Anchor component="button" size="sm" onClick={onRetry}>
          {t("retry")}
        </Anchor>
      </Group>
    </Alert>
  );
}
