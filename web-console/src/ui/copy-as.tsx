import { Button, Menu } from "@mantine/core";
import { useClipboard } from "@mantine/hooks";
import { notifications } from "@mantine/notifications";
import { IconCopy } from "@tabler/icons-react";
import { useTranslation } from "react-i18next";
import { curlCommand, type Call } from "@/models/commands";

const ICON_PX = 16;

/** An action that can be copied: its call, and the gantry command where there is one. */
export interface Copyable {
  /** A function returns the curl command itself, of a gateway at an address. */
  call: Call | ((origin: string) => string);
  gantry?: string | undefined;
}

/** Copies an action as a curl command, and as a gantry command where there is one. `label` tells two on a page apart. */
export function CopyAs({ call, gantry, label }: Copyable & { label?: string }) {
  const { t } = useTranslation();
  const clipboard = useClipboard();
  const copy = (text: string) => {
    clipboard.copy(text);
    notifications.show({ message: t("copy.done"), autoClose: 2_000 });
  };
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <Button
          className={label === undefined ? "copy-as" : undefined}
          aria-label={label ?? t("copy.title")}
          variant="subtle"
          size="xs"
          color="gray"
          leftSection={<IconCopy size={ICON_PX} />}
        >
          {label ?? t("copy.title")}
        </Button>
      </Menu.Target>
      <Menu.Dropdown>
        <Menu.Item
          onClick={() => {
            const { origin } = window.location;
            copy(typeof call === "function" ? call(origin) : curlCommand(call, origin));
          }}
        >
          {t("copy.curl")}
        </Menu.Item>
        {gantry !== undefined && (
          <Menu.Item
            onClick={() => {
              copy(gantry);
            }}
          >
            {t("copy.gantry")}
          </Menu.Item>
        )}
      </Menu.Dropdown>
    </Menu>
  );
}
