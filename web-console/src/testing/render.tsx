import { MantineProvider } from "@mantine/core";
import { Notifications, notifications } from "@mantine/notifications";
import { QueryClientProvider } from "@tanstack/react-query";
import {
  createMemoryHistory,
  createRootRoute,
  createRoute,
  createRouter,
  Outlet,
  RouterProvider,
  type RouterHistory,
} from "@tanstack/react-router";
import { act, render, type RenderResult } from "@testing-library/react";
import type { ReactNode } from "react";
import { operationsQuery } from "@/api/operations";
import { sessionQuery, type Caller } from "@/api/session";
import { startTranslation, type Language } from "@/i18n";
import type { Role } from "@/models/roles";
import { ConfirmProvider } from "@/ui/confirm";
import { makeQueryClient } from "@/ui/query-client";
import { theme } from "@/ui/theme";
import { parseSearch, stringifySearch } from "@/ui/url-state";

/**
 * Renders a view as the console does: with theme, texts, cache, and an address. `path` is the pattern of its route, `at`
 * the address; `operations` is the contract of the gateway. `history` is that of the browser if its steps matter.
 */
export async function renderView(
  view: ReactNode,
  {
    path = "/",
    at = path,
    role = "admin",
    operations = [],
    language = "en",
    history = createMemoryHistory({ initialEntries: [at] }),
  }: {
    path?: string;
    at?: string;
    role?: Role;
    operations?: string[];
    language?: Language;
    history?: RouterHistory;
  } = {},
): Promise<RenderResult & { address: () => string }> {
  notifications.clean();
  await startTranslation(language);
  const client = makeQueryClient();
  client.setDefaultOptions({ queries: { ...client.getDefaultOptions().queries, retry: false } });
  client.setQueryData(operationsQuery.queryKey, new Set(operations));
  const caller: Caller = { user: "ada", key: null, role, rights: {}, expires_at: null, csrf: "token" };
  client.setQueryData(sessionQuery.queryKey, caller);
  const root = createRootRoute({ component: Outlet });
  const page = createRoute({ getParentRoute: () => root, path, component: () => view });
  const elsewhere = createRoute({ getParentRoute: () => root, path: "$", component: () => <p>another page</p> });
  const router = createRouter({
    routeTree: root.addChildren(path === "$" ? [page] : [page, elsewhere]),
    history,
    parseSearch,
    stringifySearch,
  });
  await router.load();
  let result: RenderResult | undefined;
  await act(async () => {
    result = render(
      <MantineProvider theme={theme} env="test">
        <QueryClientProvider client={client}>
          <Notifications />
          <ConfirmProvider>
            <RouterProvider router={router as never} />
          </ConfirmProvider>
        </QueryClientProvider>
      </MantineProvider>,
    );
    await Promise.resolve();
  });
  return { ...(result as RenderResult), address: () => router.state.location.href };
}
