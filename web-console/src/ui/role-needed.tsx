import { Alert } from "@mantine/core";
import { IconLock } from "@tabler/icons-react";
import { useTranslation } from "react-i18next";
import type { Role } from "@/models/roles";
import { useCaller } from "./session";

const ICON_PX = 18;

/** Says which role may read a page that somebody without it has opened by its address. */
export function RoleNeeded({ role }: { role: Role }) {
  const { t } = useTranslation();
  const own = useCaller()?.role ?? null;
  return (
    <Alert role="alert" color="gray" variant="light" icon={<IconLock size={ICON_PX} />} title={t("error.refused")}>
      {t("roleNeeded.needed", { role: t(`role.${role}`) })}{" "}
      {own !== null && t("roleNeeded.own", { role: t(`role.${own}`) })}
    </Alert>
  );
}
