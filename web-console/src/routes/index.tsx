/** The map: every page with its address. A page's code is loaded when somebody opens it. */
import { createRootRoute, createRoute, createRouter } from "@tanstack/react-router";
import type { ComponentType } from "react";
import { Shell } from "@/ui/app-shell";
import { lazyPage, PagePending } from "@/ui/lazy-page";
import { NotFound, PageError } from "@/ui/page-error";
import { parseSearch, stringifySearch } from "@/ui/url-state";

const root = createRootRoute({
  component: Shell,
  notFoundComponent: NotFound,
});

/** A page at an address. `load` imports its feature, whose component is exported under `name`. */
function page<Path extends string, Name extends string>(
  path: Path,
  name: Name,
  load: () => Promise<Record<Name, ComponentType>>,
) {
  return createRoute({ getParentRoute: () => root, path, component: lazyPage(load, name) });
}

const pages = [
  page("/", "OverviewPage", () => import("@/features/overview/overview-page")),
  page("/groups", "GroupsPage", () => import("@/features/groups/groups-page")),
  page("/groups/$group", "GroupPage", () => import("@/features/groups/group-page")),
  page("/access", "AccessPage", () => import("@/features/access/access-page")),
  page("/audit", "AuditPage", () => import("@/features/audit/audit-page")),
  page("/brokers", "BrokersPage", () => import("@/features/brokers/brokers-page")),
  page("/brokers/$broker", "BrokerPage", () => import("@/features/brokers/broker-page")),
  page("/dead-letters", "DeadLettersPage", () => import("@/features/dead-letters/dead-letters-page")),
  page("/jobs", "JobsPage", () => import("@/features/jobs/jobs-page")),
  page("/reports", "ReportsPage", () => import("@/features/reports/reports-page")),
  page("/reports/$job", "ReportPage", () => import("@/features/reports/report-page")),
  page("/scheduled", "ScheduledPage", () => import("@/features/scheduled/scheduled-page")),
  page("/transactions", "TransactionsPage", () => import("@/features/transactions/transactions-page")),
  page("/messages", "MessagesPage", () => import("@/features/messages/messages-page")),
  page("/topics", "TopicsPage", () => import("@/features/topics/topics-page")),
  page("/topics/$topic", "TopicPage", () => import("@/features/topics/topic-page")),
];

export const router = createRouter({
  routeTree: root.addChildren(pages),
  basepath: "/console",
  defaultPreload: "intent",
  defaultErrorComponent: PageError,
  defaultPendingComponent: PagePending,
  scrollRestoration: true,
  parseSearch,
  stringifySearch,
});
