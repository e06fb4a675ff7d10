import { useTranslation } from "react-i18next";
import { PageFrame } from "@/ui/page-frame";
import { RoleNeeded } from "@/ui/role-needed";
import { Sections } from "@/ui/sections";
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
  const initial = isAdmin ? "users" : "sessions";
  const [{ tab }] = useUrlState({ tab: initial });
  const sections = [
    { name: "users", label: t("tab.users"), isThere: isAdmin && has(["GET /v1/users"]), view: <Users /> },
    { name: "keys", label: t("tab.keys"), isThere: isAdmin && has(["GET /v1/keys"]), view: <ApiKeys /> },
    {
      name: "sessions",
      label: t("tab.sessions"),
      isThere: has(["GET /v1/users/{user}/sessions"]),
      view: <Sessions />,
    },
    { name: "roles", label: t("tab.roles"), view: <Roles /> },
  ];
  return (
    <PageFrame title={t("title")} description={t("description")}>
      <Sections
        sections={sections}
        initial={initial}
        // A search and an open user or key belong to the section that is left.
        left={{ q: "", user: "", key: "", revoked: "" }}
        refusal={!isAdmin && ADMINS.includes(tab) ? <RoleNeeded role="admin" /> : null}
      />
    </PageFrame>
  );
}
