import { Badge, Button, Group, Switch, Text } from "@mantine/core";
import { IconPlus } from "@tabler/icons-react";
import { useInfiniteQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import type { ApiKey } from "@/api/api-keys";
import { rightsOf, stateOfKey, type KeyState } from "@/models/access";
import { gantryCommand } from "@/models/commands";
import { searchNames } from "@/models/search";
import { Panel } from "@/ui/dialog";
import { CopyAs } from "@/ui/copy-as";
import { DataTable, type Column } from "@/ui/data-table";
import { useFormat } from "@/ui/format";
import { useNow } from "@/ui/now";
import { Empty, QueryState } from "@/ui/page-frame";
import { useOperations, useRole } from "@/ui/session";
import { SearchField, useTyped } from "@/ui/typing";
import { useUrlState } from "@/ui/url-state";
import { Ago, Name, When } from "@/ui/value";
import { useAllPages } from "@/ui/paging";
import { CreateKey } from "./create-key";
import { KeyDetails } from "./key-details";
import { apiKeysQuery } from "./queries";

const ICON_PX = 16;
const COLORS: Record<KeyState, string> = { valid: "green", ending: "orange", expired: "gray", revoked: "gray" };

/** The keys of programs: search, create, open. */
export function ApiKeys() {
  const { t } = useTranslation("access");
  const format = useFormat();
  const has = useOperations();
  const isAdmin = useRole("admin");
  const [url, setUrl] = useUrlState({ q: "", key: "", revoked: "no" });
  const [isCreating, setCreating] = useState(false);
  const query = useInfiniteQuery(apiKeysQuery(url.revoked === "yes"));
  useAllPages(query);
  const keys = query.data?.pages.flatMap((page) => page.items) ?? [];
  const search = useTyped(url.q, (q) => {
    setUrl({ q });
  });
  const found = searchNames(keys, search.text, (key) => `${key.name} ${key.id}`);
  const columns = useColumns((key) => {
    setUrl({ key: key.id }, { panel: "open" });
  });
  const open = keys.find((key) => key.id === url.key);
  return (
    <>
      <Group gap="md" mb="sm">
        <SearchField label={t("keys.search")} typed={search} />
        <Switch
          label={t("keys.withRevoked")}
          checked={url.revoked === "yes"}
          onChange={(event) => {
            setUrl({ revoked: event.currentTarget.checked ? "yes" : "no" });
          }}
        />
        <Text size="sm" c="dimmed" role="status" style={{ flex: 1 }}>
          {query.data !== undefined && t("keys.count", { count: found.length, shown: format.count(found.length) })}
        </Text>
        <CopyAs
          call={{ method: "GET", path: "/v1/keys", query: { revoked: url.revoked === "yes" } }}
          gantry={gantryCommand("key", "list", url.revoked === "yes" ? "--revoked" : undefined)}
        />
        {isAdmin && has(["POST /v1/keys"]) && (
          <Button
            size="xs"
            leftSection={<IconPlus size={ICON_PX} />}
            onClick={() => {
              setCreating(true);
            }}
          >
            {t("keys.create.open")}
          </Button>
        )}
      </Group>
      <QueryState query={query} isEmpty={() => keys.length === 0} empty={t("keys.none")}>
        {() =>
          found.length === 0 ? (
            <Empty>{t("keys.nothingFound")}</Empty>
          ) : (
            <DataTable
              label={t("tab.keys")}
              rows={found}
              columns={columns}
              rowKey={(key) => key.id}
              onOpen={(key) => {
                setUrl({ key: key.id }, { panel: "open" });
              }}
            />
          )
        }
      </QueryState>
      <Panel
        opened={url.key !== "" && query.data !== undefined && !query.hasNextPage}
        onClose={() => {
          setUrl({ key: "" }, { panel: "close" });
        }}
        size="xl"
        title={<Name>{open?.name ?? url.key}</Name>}
      >
        {open === undefined ? (
          <Empty>{t("keys.unknown", { id: url.key })}</Empty>
        ) : (
          <KeyDetails key={open.id} apiKey={open} state={<State of={open} />} />
        )}
      </Panel>
      {isCreating && (
        <CreateKey
          onClose={() => {
            setCreating(false);
          }}
        />
      )}
    </>
  );
}

/** Whether a key is accepted. */
function State({ of: key }: { of: ApiKey }) {
  const { t } = useTranslation("access");
  const state = stateOfKey(key, useNow());
  return (
    <Badge variant="light" color={COLORS[state]} tt="none" radius="sm">
      {t(`keys.state.${state}`)}
    </Badge>
  );
}

function Ends({ of: key }: { of: ApiKey }) {
  const { t } = useTranslation("access");
  if (key.expires_at === null) return t("keys.never");
  return <When time={key.expires_at} />;
}

function useColumns(onOpen: (key: ApiKey) => void): Column<ApiKey>[] {
  const { t } = useTranslation("access");
  const rightsText = (key: ApiKey) => {
    const { publish, topics, groups, admin, metrics } = rightsOf(key);
    if (admin) return t("keys.rights.admin");
    const parts = { publish, topics, groups };
    return [
      ...(["publish", "topics", "groups"] as const).flatMap((part) =>
        parts[part].length === 0 ? [] : [t(`keys.rights.${part}`, { patterns: parts[part].join(", ") })],
      ),
      ...(metrics ? [t("keys.rights.metrics")] : []),
    ].join(" · ");
  };
  return [
    {
      key: "name",
      header: t("keys.name"),
      width: "minmax(11rem, 1.5fr)",
      sortBy: (key) => key.name,
      cell: (key) => (
        <button
          type="button"
          className="row-link cell-button"
          onClick={() => {
            onOpen(key);
          }}
        >
          <Name>{key.name}</Name>
        </button>
      ),
    },
    {
      key: "rights",
      header: t("keys.rights.title"),
      width: "minmax(14rem, 2.5fr)",
      cell: (key) => <Name>{rightsText(key) || t("keys.rights.none")}</Name>,
    },
    {
      key: "state",
      header: t("users.state"),
      width: "8rem",
      sortBy: (key) => key.revoked_at ?? "",
      cell: (key) => <State of={key} />,
    },
    {
      key: "used",
      header: t("keys.used"),
      width: "9rem",
      sortBy: (key) => key.last_used_at,
      cell: (key) => (key.last_used_at === null ? t("keys.notUsed") : <Ago time={key.last_used_at} />),
    },
    {
      key: "ends",
      header: t("keys.ends"),
      width: "8rem",
      sortBy: (key) => key.expires_at,
      cell: (key) => <Ends of={key} />,
    },
    {
      key: "created",
      header: t("created"),
      width: "9rem",
      sortBy: (key) => key.created_at,
      cell: (key) => <Ago time={key.created_at} />,
    },
  ];
}
