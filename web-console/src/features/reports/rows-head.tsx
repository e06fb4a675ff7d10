import { Group, Text } from "@mantine/core";
import type { ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { Ago } from "@/ui/value";

/** The line above rows of a run: filters, the age of the numbers, and the rows as a command. */
export function RowsHead({ asOf, copy, children }: { asOf: string | null; copy: ReactNode; children: ReactNode }) {
  const { t } = useTranslation("reports");
  return (
    <Group justify="space-between" align="flex-end">
      <Group align="flex-end">
        {children}
        {asOf !== null && (
          <Text size="xs" c="dimmed">
            {t("asOf")} <Ago time={asOf} />
          </Text>
        )}
      </Group>
      {copy}
    </Group>
  );
}
