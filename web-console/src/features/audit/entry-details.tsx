import { Stack, Table, Text } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { changesOf, type AuditEntry } from "@/models/audit";
import { Facts, type Fact } from "@/ui/facts";
import { useFormat } from "@/ui/format";
import { Name } from "@/ui/value";

/** One change: who, when, by which request, and each field before and after. */
export function EntryDetails({ entry }: { entry: AuditEntry }) {
  const { t } = useTranslation("audit");
  const format = useFormat();
  const changes = changesOf(entry);
  const facts: Fact[] = [
    [t("actor"), <Name key="actor">{entry.actor}</Name>],
    [t("at"), format.time(entry.at)],
    [t("kind"), t(`kinds.${entry.kind}`, { defaultValue: entry.kind })],
    [t("name"), <Name key="name">{entry.name}</Name>],
    [t("request"), entry.request_id === null ? t("noRequest") : <Name key="request">{entry.request_id}</Name>],
  ];
  return (
    <Stack gap="md">
      <Facts facts={facts} />
      {changes.length === 0 ? (
        <Text size="sm">{t("noFields")}</Text>
      ) : (
        <div style={{ overflowX: "auto" }} tabIndex={0} role="region" aria-label={t("difference")}>
          <Table aria-label={t("difference")} withTableBorder>
            <Table.Thead>
              <Table.Tr>
                <Table.Th>{t("field")}</Table.Th>
                <Table.Th>{t("before")}</Table.Th>
                <Table.Th>{t("after")}</Table.Th>
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {changes.map((change) => (
                <Table.Tr key={change.field}>
                  <Table.Td style={{ overflowWrap: "anywhere" }}>
                    <Name>{change.field}</Name>
                  </Table.Td>
                  <Table.Td style={{ overflowWrap: "anywhere" }}>
                    {change.before === null ? (
                      t("absent")
                    ) : (
                      <del>
                        <Name>{change.before}</Name>
                      </del>
                    )}
                  </Table.Td>
                  <Table.Td style={{ overflowWrap: "anywhere" }}>
                    {change.after === null ? (
                      t("absent")
                    ) : (
                      <ins style={{ fontWeight: 600, textDecoration: "none" }}>
                        <Name>{change.after}</Name>
                      </ins>
                    )}
                  </Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </div>
      )}
    </Stack>
  );
}
