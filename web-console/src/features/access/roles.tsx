import { Stack, Table, Text, Title } from "@mantine/core";
import { IconCheck } from "@tabler/icons-react";
import { useTranslation } from "react-i18next";
import { ABILITIES, ROLES } from "@/models/access";
import { isAllowed } from "@/models/roles";
import { useCaller } from "@/ui/session";

const ICON_PX = 16;
const RIGHTS = ["publish", "consume", "metrics", "admin"] as const;

/** What each role of a user may do, and what each right of a key allows. */
export function Roles() {
  const { t } = useTranslation("access");
  const own = useCaller()?.role ?? null;
  return (
    <Stack gap="lg">
      <Stack gap="xs" component="section" aria-label={t("roles.title")}>
        <Title order={2}>{t("roles.title")}</Title>
        {own !== null && (
          <Text size="sm" c="dimmed">
            {t("roles.own", { role: t(`common:role.${own}`) })}
          </Text>
        )}
        <div className="panel" style={{ overflowX: "auto" }} tabIndex={0} role="region" aria-label={t("roles.table")}>
          <Table aria-label={t("roles.title")} className="narrow-cells">
            <Table.Thead>
              <Table.Tr>
                <Table.Th>{t("roles.ability")}</Table.Th>
                {ROLES.map((role) => (
                  <Table.Th key={role} w="14%" ta="center" aria-current={role === own}>
                    {t(`common:role.${role}`)}
                  </Table.Th>
                ))}
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {ABILITIES.map((ability) => (
                <Table.Tr key={ability.name}>
                  <Table.Th scope="row" fw={400}>
                    {t(`roles.may.${ability.name}`)}
                  </Table.Th>
                  {ROLES.map((role) => (
                    <Table.Td key={role} ta="center">
                      {isAllowed(role, ability.role) ? (
                        <IconCheck
                          size={ICON_PX}
                          role="img"
                          aria-label={t("roles.yes")}
                          style={{ verticalAlign: "middle", color: "light-dark(#2b8a3e, #8ce99a)" }}
                        />
                      ) : (
                        <Text span size="sm" c="dimmed">
                          {t("roles.no")}
                        </Text>
                      )}
                    </Table.Td>
                  ))}
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </div>
      </Stack>
      <Stack gap="xs" component="section" aria-label={t("rights.title")}>
        <Title order={2}>{t("rights.title")}</Title>
        <Text size="sm" c="dimmed">
          {t("rights.patterns")}
        </Text>
        <div className="panel">
          <Table aria-label={t("rights.title")}>
            <Table.Tbody>
              {RIGHTS.map((right) => (
                <Table.Tr key={right}>
                  <Table.Th scope="row" w={110}>
                    <code>{right}</code>
                  </Table.Th>
                  <Table.Td>{t(`rights.about.${right}`)}</Table.Td>
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </div>
      </Stack>
    </Stack>
  );
}
