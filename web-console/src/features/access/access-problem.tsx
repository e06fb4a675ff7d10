import { Stack, Text } from "@mantine/core";
import { useTranslation } from "react-i18next";
import type { ApiError } from "@/api/api-error";
import { Problem } from "@/ui/problem";

// Refusals that keep somebody from locking everybody out, and what helps.
const HINTS: Record<string, string> = { "last-admin": "lastAdmin", "last-admin-key": "lastAdminKey" };

/** Why a change of a user or a key was refused, and what to do if it would have locked everybody out. */
export function AccessProblem({ error }: { error: ApiError }) {
  const { t } = useTranslation("access");
  const hint = HINTS[error.kind];
  return (
    <Stack gap={6}>
      <Problem error={error} />
      {hint !== undefined && <Text size="sm">{t(`hint.${hint}`)}</Text>}
    </Stack>
  );
}
