import { Badge } from "@mantine/core";
import { useTranslation } from "react-i18next";

/** Says that a group gets no messages because somebody paused it. */
export function Paused() {
  const { t } = useTranslation("groups");
  return (
    <Badge color="orange" variant="light" tt="none" radius="sm">
      {t("paused")}
    </Badge>
  );
}
