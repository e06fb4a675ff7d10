import { Badge, Tooltip } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { shownState, type ShownState, type Transaction } from "@/models/transactions";
import { useNow } from "@/ui/now";

const COLORS: Record<ShownState, string> = {
  open: "blue",
  overdue: "orange",
  committed: "green",
  rolled_back: "gray",
  expired: "red",
};

/** The state of a transaction; its tooltip says what it means. */
export function StateBadge({ transaction }: { transaction: Transaction }) {
  const { t } = useTranslation("transactions");
  const state = shownState(transaction, useNow());
  return (
    <Tooltip label={t(`meaning.${state}`)} multiline maw={280}>
      <Badge color={COLORS[state]} variant="light" tt="none" radius="sm">
        {t(`states.${state}`)}
      </Badge>
    </Tooltip>
  );
}
