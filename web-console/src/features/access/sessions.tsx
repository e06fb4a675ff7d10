import { Autocomplete, Group, Stack, Text } from "@mantine/core";
import { useDebouncedValue } from "@mantine/hooks";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { CopyAs } from "@/ui/copy-as";
import { useCaller, useRole } from "@/ui/session";
import { useUrlState } from "@/ui/url-state";
import { usersQuery } from "./queries";
import { SessionTable } from "./session-table";

const TYPING_MS = 300;
const NAMES_SHOWN = 50;

/** Where the caller is logged in, and for admins, where others are. */
export function Sessions() {
  const { t } = useTranslation("access");
  const caller = useCaller();
  const isAdmin = useRole("admin");
  const own = caller?.user ?? "";
  const [url, setUrl] = useUrlState({ user: own });
  // An empty field stands for the own sessions, so it is no text of the address.
  const [typed, setTyped] = useState(url.user);
  const users = useInfiniteQuery({ ...usersQuery, enabled: isAdmin }).data?.pages.flatMap((page) => page.items) ?? [];
  // Typing sends a request when it pauses, not with each letter.
  const [user] = useDebouncedValue(url.user, TYPING_MS);
  return (
    <Stack gap="sm">
      <Group gap="md" align="flex-end">
        {isAdmin && (
          <Autocomplete
            size="xs"
            label={t("sessions.whose")}
            data={users.map((each) => each.user)}
            limit={NAMES_SHOWN}
            placeholder={own}
            value={typed}
            onChange={(value) => {
              setTyped(value);
              setUrl({ user: value });
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
