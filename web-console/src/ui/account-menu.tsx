import { ActionIcon, Menu, Text } from "@mantine/core";
import { IconLogout, IconLogout2, IconPassword, IconUserCircle } from "@tabler/icons-react";
import { useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { logOut } from "@/api/session";
import { endSessions } from "@/api/users";
import { gantryCommand } from "@/models/commands";
import { ChangePassword } from "./change-password";
import { useConfirm } from "./confirm";
import { useFailureNotice } from "./problem";
import { useCaller, useOperations } from "./session";

const ICON_PX = 18;

/** The caller, the own password, and the end of this session or of all. */
export function AccountMenu() {
  const { t } = useTranslation("session");
  const caller = useCaller();
  const client = useQueryClient();
  const noteFailure = useFailureNotice();
  const confirm = useConfirm();
  const has = useOperations();
  const [isChanging, setChanging] = useState(false);
  const user = caller?.user ?? null;
  const leave = () => {
    client.clear();
    window.location.reload();
  };
  const leaveEverywhere = async (name: string) => {
    const agreed = await confirm({
      title: t("everywhere.title"),
      effects: [t("everywhere.effect"), t("everywhere.delay")],
      action: t("everywhere.submit"),
      copy: {
        call: { method: "DELETE", path: "/v1/users/{user}/sessions", values: { user: name } },
        gantry: gantryCommand("user", "sessions", name, "--end"),
      },
    });
    if (!agreed) return;
    try {
      await endSessions(name);
      leave();
    } catch (error) {
      // Unlike a log-out from here, this promises something about other places; a failure must not look like success.
      noteFailure(t("everywhere.failed"), error);
    }
  };
  return (
    <>
      <Menu position="bottom-end">
        <Menu.Target>
          <ActionIcon variant="subtle" color="gray" aria-label={t("common:shell.account")}>
            <IconUserCircle size={ICON_PX} />
          </ActionIcon>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Label>
            <Text size="sm" fw={600}>
              {user}
            </Text>
            {caller?.role && <Text size="xs">{t(`common:role.${caller.role}`)}</Text>}
          </Menu.Label>
          {user !== null && has(["PUT /v1/session/password"]) && (
            <Menu.Item
              leftSection={<IconPassword size={ICON_PX} />}
              onClick={() => {
                setChanging(true);
              }}
            >
              {t("change.open")}
            </Menu.Item>
          )}
          <Menu.Item
            leftSection={<IconLogout size={ICON_PX} />}
            onClick={() => {
              // Everything that was read with this session goes, also if the gateway did not answer.
              void logOut().finally(leave);
            }}
          >
            {t("common:shell.logOut")}
          </Menu.Item>
          {user !== null && has(["DELETE /v1/users/{user}/sessions"]) && (
            <Menu.Item leftSection={<IconLogout2 size={ICON_PX} />} onClick={() => void leaveEverywhere(user)}>
              {t("everywhere.open")}
            </Menu.Item>
          )}
        </Menu.Dropdown>
      </Menu>
      {isChanging && (
        <ChangePassword
          user={user ?? ""}
          onClose={() => {
            setChanging(false);
          }}
        />
      )}
    </>
  );
}
