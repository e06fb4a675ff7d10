import { Tabs } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { PageFrame } from "@/ui/page-frame";
import { RoleNeeded } from "@/ui/role-needed";
import { useOperations, useRole } from "@/ui/session";
import { useUrlState } from "@/ui/url-state";
import { ApiKeys } from "./api-keys";
import { Roles } from "./roles";
import { Sessions } from "./sessions";
import { Users } from "./users";

/** Sections that only an admin may read. */
const ADMINS: readonly string[] = ["users", "keys"];

/** Who may do what: users, API keys, sessions, and what roles and rights mean. */
export function AccessPage() {
  const { t } = useTranslation("access");
  const has = useOperations();
  const isAdmin = useRole("admin");
  const [url, setUrl] = useUrlState({ tab: isAdmin ? "users" : "sessions" });
  const sections = [
    { name: "users", isThere: isAdmin && has(["GET /v1/users"]), view: <Users /> },
    { name: "keys", isThere: isAdmin && has(["GET /v1/keys"]), view: <ApiKeys /> },
    { name: "sessions", isThere: has(["GET /v1/users/{user}/sessions"]), view: <Sessions /> },
    { name: "roles", isThere: true, view: <Roles /> },
  ].filter((section) => section.isThere);
  const shown = sections.some((section) => section.name === url.tab) ? url.tab : (sections[0]?.name ?? "");
  const isRefused = !isAdmin && ADMINS.includes(url.tab);
  return (
    <PageFrame title={t("title")} description={t("description")}>
      <Tabs
        value={isRefused ? null : shown}
        keepMounted={false}
        onChange={(tab) => {
          // A search and an open user or key belong to the section that is left.
          const left = { q: "", user: "", key: "", revoked: "" };
          setUrl({ tab: tab ?? "", ...left });
        }}
      >
        <Tabs.List mb="sm">
          {sections.map(({ name }) => (
            <Tabs.Tab key={name} value={name}>
              {t(`tab.${name}`)}
            </Tabs.Tab>
          ))}
        </Tabs.List>
        {isRefused && <RoleNeeded role="admin" />}
        {sections.map(({ name, view }) => (
          <Tabs.Panel key={name} value={name}>
            {view}
          </Tabs.Panel>
        ))}
      </Tabs>
    </PageFrame>
  );
}
