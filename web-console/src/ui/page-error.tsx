import { Stack } from "@mantine/core";
import type { ErrorComponentProps } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import { Empty, PageFrame } from "./page-frame";
import { Problem } from "./problem";

/** A page whose code failed or could not be loaded; the navigation around it still works. */
export function PageError({ error, reset }: ErrorComponentProps) {
  const { t } = useTranslation();
  return (
    <PageFrame title={t("error.page")}>
      <Problem error={error} onRetry={reset} />
    </PageFrame>
  );
}

export function NotFound() {
  const { t } = useTranslation();
  return (
    <PageFrame title={t("error.notFound")}>
      <Stack>
        <Empty>{t("error.notFoundDetail")}</Empty>
      </Stack>
    </PageFrame>
  );
}
