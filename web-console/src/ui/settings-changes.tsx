import { Alert, Table, Text } from "@mantine/core";
import { useTranslation } from "react-i18next";
import type { Conflict, Difference } from "@/models/changes";

/** What a change of settings will do: each setting with its value now and then. */
export function SettingsDiff({ changed, labelOf }: { changed: Difference[]; labelOf: (name: string) => string }) {
  const { t } = useTranslation();
  return (
    <Table aria-label={t("settings.diff")} withTableBorder>
      <Table.Thead>
        <Table.Tr>
          <Table.Th>{t("settings.setting")}</Table.Th>
          <Table.Th>{t("settings.before")}</Table.Th>
          <Table.Th>{t("settings.after")}</Table.Th>
        </Table.Tr>
      </Table.Thead>
      <Table.Tbody>
        {changed.map((each) => (
          <Table.Tr key={each.name}>
            <Table.Td>{labelOf(each.name)}</Table.Td>
            <Table.Td>
              <del>{each.before || "–"}</del>
            </Table.Td>
            <Table.Td>
              <ins style={{ fontWeight: 600, textDecoration: "none" }}>{each.after || "–"}</ins>
            </Table.Td>
          </Table.Tr>
        ))}
      </Table.Tbody>
    </Table>
  );
}

/** What another person changed while this form was open. */
export function OthersChanges({ found, labelOf }: { found: Conflict[]; labelOf: (name: string) => string }) {
  const { t } = useTranslation();
  return (
    <Alert role="alert" color="orange" variant="light" title={t("conflict.title")}>
      <Text size="sm" mb={6}>
        {t("conflict.detail")}
      </Text>
      <Table aria-label={t("conflict.title")}>
        <Table.Thead>
          <Table.Tr>
            <Table.Th>{t("settings.setting")}</Table.Th>
            <Table.Th>{t("conflict.read")}</Table.Th>
            <Table.Th>{t("conflict.theirs")}</Table.Th>
            <Table.Th>{t("conflict.mine")}</Table.Th>
          </Table.Tr>
        </Table.Thead>
        <Table.Tbody>
          {found.map((each) => (
            <Table.Tr key={each.name}>
              <Table.Td>{labelOf(each.name)}</Table.Td>
              <Table.Td>{each.read || "–"}</Table.Td>
              <Table.Td>{each.theirs || "–"}</Table.Td>
              <Table.Td>{each.mine || "–"}</Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Alert>
  );
}
