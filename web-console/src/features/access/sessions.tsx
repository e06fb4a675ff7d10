import { Group, Stack, Text } from "@mantine/core";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { CopyAs } from "@/ui/copy-as";
import { useCaller, useRole } from "@/ui/session";
import { AddressNames } from "@/ui/typing";
import { useUrlState } from "@/ui/url-state";
import { usersQuery } from "./queries";
import { SessionTable } from "./session-table";

const NAMES_SHOWN = 50;

/** Where the caller is logged in, and for admins, where others are. */
export function Sessions() {
  const { t } = useTranslation("access");
  const caller = useCaller();
  const isAdmin = useRole("admin");
  const own = caller?.user ?? "";
  const [url, setUrl] = useUrlState({ user: "" });
  const user = url.user === "" ? own : url.user;
  const users = useInfiniteQuery({ ...usersQuery, enabled: isAdmin }).data?.pages.flatMap((page) => page.items) ?? [];
  return (
    <Stack gap="sm">
      <Group gap="md" align="flex-end">
        {isAdmin && (
          <AddressNames
            size="xs"
            label={t("sessions.whose")}
            data={users.map((each) => each.user)}
            limit={NAMES_SHOWN}
            placeholder={own}
            value={url.user}
            onKeep={(kept) => {
              setUrl({ user: kept });
            }}
          />
        )}
        <Text size="sm" c="dimmed" style={{ flex: "1 1 12rem" }}>
          {t("sessions.rule")}
        </Text>
        <CopyAs
          call={{ method: "GET", path: "/v1/users/{user}/sessions", values: { user } }}
          gantry={gantryCommand("user", "sessions", user)}
        />
      </Group>
      <SessionTable key={user} user={user} />
    </Stack>
  );
}
