import type { Schema } from "@/api/types";

export type Role = Schema<"Role">;

const ORDER: readonly Role[] = ["viewer", "operator", "admin"];

/** Returns whether a caller may do what `needed` may do. The gateway decides; this only hides what it would refuse. */
export function isAllowed(role: Role | null, needed: Role): boolean {
  return role !== null && ORDER.indexOf(role) >= ORDER.indexOf(needed);
}
