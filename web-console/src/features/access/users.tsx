import { Badge, Button, Group, Text } from "@mantine/core";
import { IconPlus } from "@tabler/icons-react";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import type { User } from "@/api/users";
import { lastLogInOf, ROLES, type LastLogIn } from "@/models/access";
import { gantryCommand } from "@/models/commands";
import { searchNames } from "@/models/search";
import { Panel } from "@/ui/dialog";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { Empty, QueryState } from "@/ui/page-frame";
import { useCaller, useOperations, useRole } from "@/ui/session";
import { SearchField, useTyped } from "@/ui/typing";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name, Value } from "@/ui/value";
import { useAllPages } from "@/ui/paging";
import { CreateUser } from "./create-user";
import { logInsQuery, usersQuery } from "./queries";
import { UserDetails } from "./user-details";
import { UserState } from "./user-state";

const ICON_PX = 16;

/** The people who may log in: search, create, open. */
export function Users() {
  const { t } = useTranslation("access");
  const format = useFormat();
  const has = useOperations();
  const isAdmin = useRole("admin");
  const [url, setUrl] = useUrlState({ q: "", user: "" });
  const [isCreating, setCreating] = useState(false);
  const query = useInfiniteQuery(usersQuery);
  useAllPages(query);
  const hasLogIns = isAdmin && has(["GET /v1/audit"]);
  const logIns = useQuery({ ...logInsQuery, enabled: hasLogIns }).data;
  const lastOf = (user: User) => (logIns === undefined ? null : lastLogInOf(user, logIns.newest, logIns.isWhole));
  const users = query.data?.pages.flatMap((page) => page.items) ?? [];
  const search = useTyped(url.q, (q) => {
    setUrl({ q });
  });
  const found = searchNames(users, search.text, (user) => user.user);
  const columns = useColumns(hasLogIns ? lastOf : null, (user) => {
    setUrl({ user: user.user }, { panel: "open" });
  });
  const open = users.find((user) => user.user === url.user);
  return (
    <>
      <Group gap="md" mb="sm">
        <SearchField label={t("users.search")} typed={search} />
        <Text size="sm" c="dimmed" role="status" style={{ flex: "1 1 auto", whiteSpace: "nowrap" }}>
          {query.data !== undefined && t("users.count", { count: found.length, shown: format.count(found.length) })}
        </Text>
        <CopyAs call={{ method: "GET", path: "/v1/users" }} gantry={gantryCommand("user", "list")} />
        {isAdmin && has(["PUT /v1/users/{user}"]) && (
          <Button
            size="xs"
            leftSection={<IconPlus size={ICON_PX} />}
            onClick={() => {
              setCreating(true);
            }}
          >
            {t("users.create.open")}
          </Button>
        )}
      </Group>
      <QueryState query={query} isEmpty={() => users.length === 0} empty={t("users.none")}>
        {() =>
          found.length === 0 ? (
            <Empty>{t("users.nothingFound")}</Empty>
          ) : (
            <DataTable
              label={t("tab.users")}
              rows={found}
              columns={columns}
              rowKey={(user) => user.user}
              onOpen={(user) => {
                setUrl({ user: user.user }, { panel: "open" });
              }}
            />
          )
        }
      </QueryState>
      <Panel
        opened={url.user !== "" && query.data !== undefined && !query.hasNextPage}
        onClose={() => {
          setUrl({ user: "" }, { panel: "close" });
        }}
        size="xl"
        title={<Name>{url.user}</Name>}
      >
        {open === undefined ? (
          <Empty>{t("users.unknown", { name: url.user })}</Empty>
        ) : (
          <UserDetails
            key={`${open.user} ${open.role}`}
            user={open}
            lastLogIn={hasLogIns ? <LogIn last={lastOf(open)} /> : null}
            onGone={() => {
              setUrl({ user: "" }, { panel: "close" });
            }}
          />
        )}
      </Panel>
      {isCreating && (
        <CreateUser
          onClose={() => {
            setCreating(false);
          }}
        />
      )}
    </>
  );
}

/** When somebody last logged in. The trail keeps entries for a while, so none of them is not the same as never. */
function LogIn({ last }: { last: LastLogIn | null }) {
  const { t } = useTranslation("access");
  if (last === null) return <Value>{null}</Value>;
  if (last.at !== null) return <Ago time={last.at} />;
  return last.isWhole ? t("users.noLogIn") : <Value reason={t("users.olderLogIn")}>{null}</Value>;
}

function useColumns(lastOf: ((user: User) => LastLogIn | null) | null, onOpen: (user: User) => void): Column<User>[] {
  const { t } = useTranslation("access");
  const caller = useCaller();
  const logIn: Column<User> = {
    key: "logIn",
    header: t("users.lastLogIn"),
    width: "10rem",
    sortBy: (user) => lastOf?.(user)?.at ?? null,
    cell: (user) => <LogIn last={lastOf?.(user) ?? null} />,
  };
  return [
    {
      key: "user",
      header: t("users.user"),
      width: "minmax(12rem, 2fr)",
      sortBy: (user) => user.user,
      cell: (user) => (
        <>
          <button
            type="button"
            className="row-link cell-button"
            onClick={() => {
              onOpen(user);
            }}
          >
            <Name>{user.user}</Name>
          </button>{" "}
          {user.user === caller?.user && (
            <Badge variant="light" color="gray" tt="none" radius="sm">
              {t("users.you")}
            </Badge>
          )}
        </>
      ),
    },
    {
      key: "role",
      header: t("users.role.label"),
      width: "9rem",
      sortBy: (user) => ROLES.indexOf(user.role),
      cell: (user) => t(`common:role.${user.role}`),
    },
    {
      key: "state",
      header: t("users.state"),
      width: "9rem",
      sortBy: (user) => (user.disabled ? 1 : 0),
      cell: (user) => <UserState user={user} />,
    },
    ...(lastOf === null ? [] : [logIn]),
    {
      key: "password",
      header: t("users.passwordChanged"),
      width: "11rem",
      sortBy: (user) => user.password_changed_at,
      cell: (user) => <Ago time={user.password_changed_at} />,
    },
    {
      key: "created",
      header: t("created"),
      width: "9rem",
      sortBy: (user) => user.created_at,
      cell: (user) => <Ago time={user.created_at} />,
    },
  ];
}
