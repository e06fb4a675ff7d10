import { useSyncExternalStore } from "react";
import { isGatewayLost, onContactChange } from "@/api/contact";

/** Whether the gateway gives no answers at the moment. */
export function useIsGatewayLost(): boolean {
  return useSyncExternalStore(onContactChange, isGatewayLost);
}
