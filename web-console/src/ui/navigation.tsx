import {
  IconArrowsSplit2,
  IconClock,
  IconGauge,
  IconHistory,
  IconListCheck,
  IconMail,
  IconMailX,
  IconReportAnalytics,
  IconServer,
  IconShieldLock,
  IconStack2,
  IconUsersGroup,
  type Icon,
} from "@tabler/icons-react";
import type { OperationName } from "@/api/operations";
import { isAllowed, type Role } from "@/models/roles";
import { useCaller, useOperations } from "./session";

export interface NavItem {
  to: string;
  /** Name of the feature; its text `nav` is the label. */
  feature: string;
  icon: Icon;
  /** Operations without which the page makes no sense. */
  needs: OperationName[];
  role?: Role;
}

/** The pages of the navigation, one line each, in its order. */
const PAGES: NavItem[] = [
  { to: "/", feature: "overview", icon: IconGauge, needs: ["GET /v1/cluster"] },
  { to: "/topics", feature: "topics", icon: IconStack2, needs: ["GET /v1/topics"] },
  { to: "/messages", feature: "messages", icon: IconMail, needs: ["GET /v1/topics/{topic}/messages"] },
  { to: "/groups", feature: "groups", icon: IconUsersGroup, needs: ["GET /v1/groups"] },
  {
    to: "/dead-letters",
    feature: "dead-letters",
    icon: IconMailX,
    needs: ["GET /v1/groups/{group}/dead-letters"],
  },
  { to: "/scheduled", feature: "scheduled", icon: IconClock, needs: ["GET /v1/topics/{topic}/scheduled"] },
  { to: "/transactions", feature: "transactions", icon: IconArrowsSplit2, needs: ["GET /v1/transactions"] },
  { to: "/brokers", feature: "brokers", icon: IconServer, needs: ["GET /v1/cluster"] },
  { to: "/reports", feature: "reports", icon: IconReportAnalytics, needs: ["GET /v1/reports"] },
  { to: "/jobs", feature: "jobs", icon: IconListCheck, needs: ["GET /v1/jobs"] },
  { to: "/access", feature: "access", icon: IconShieldLock, needs: ["GET /v1/users/{user}/sessions"] },
  { to: "/audit", feature: "audit", icon: IconHistory, needs: ["GET /v1/audit"], role: "admin" },
];

/** Returns the pages that this gateway has and that the caller may read. */
export function usePages(): NavItem[] {
  const has = useOperations();
  const role = useCaller()?.role ?? null;
  return PAGES.filter((page) => has(page.needs) && isAllowed(role, page.role ?? "viewer"));
}
