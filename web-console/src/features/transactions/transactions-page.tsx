import { Stack } from "@mantine/core";
import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useTranslation } from "react-i18next";
import { gantryCommand } from "@/models/commands";
import { optionsOf } from "@/models/filters";
import { ANY_TRANSACTION, isOverdue, toQuery } from "@/models/transactions";
import { Panel } from "@/ui/dialog";
import { CopyAs } from "@/ui/copy-as";
import { useNow } from "@/ui/now";
import { Empty, PageFrame, QueryState } from "@/ui/page-frame";
import { useUrlState } from "@/ui/url-state";
import { MoreRows } from "@/ui/paging";
import { Filters } from "./filters";
import { transactionQuery, transactionsQuery } from "./queries";
import { TransactionDetails } from "./transaction-details";
import { TransactionTable } from "./transaction-table";

/** Messages that are delivered only after a decision: what is open or overdue, what was decided, and by whom. */
export function TransactionsPage() {
  const { t } = useTranslation("transactions");
  const now = useNow();
  const [{ transaction, ...filter }, change] = useUrlState({ transaction: "", ...ANY_TRANSACTION });
  const wanted = toQuery(filter);
  const query = useInfiniteQuery(transactionsQuery(wanted));
  const read = query.data?.pages.flatMap((page) => page.items) ?? [];
  const isOverdueOnly = filter.state === "overdue";
  const shown = isOverdueOnly ? read.filter((each) => isOverdue(each, now)) : read;
  const isAny = Object.values(filter).every((value) => value === "");
  return (
    <PageFrame
      title={t("title")}
      description={t("description")}
      actions={
        <CopyAs
          call={{ method: "GET", path: "/v1/transactions", query: wanted }}
          gantry={gantryCommand("transaction", "list", ...optionsOf(wanted))}
        />
      }
    >
      <Filters filter={filter} onChange={change} />
      <QueryState query={query}>
        {() => (
          <Stack gap="sm">
            {shown.length > 0 ? (
              <TransactionTable
                transactions={shown}
                onOpen={(row) => {
                  change({ transaction: row.transaction }, { panel: "open" });
                }}
              />
            ) : (
              <Empty>{query.hasNextPage ? t("noneSoFar") : isAny ? t("noneAtAll") : t("noneLike")}</Empty>
            )}
            <MoreRows query={query} label={t("older")} />
          </Stack>
        )}
      </QueryState>
      <Panel
        opened={transaction !== ""}
        onClose={() => {
          change({ transaction: "" }, { panel: "close" });
        }}
        size="xl"
        title={t("transaction")}
      >
        {transaction !== "" && <One key={transaction} transaction={transaction} />}
      </Panel>
    </PageFrame>
  );
}

function One({ transaction }: { transaction: string }) {
  const query = useQuery(transactionQuery(transaction));
  return <QueryState query={query}>{(found) => <TransactionDetails transaction={found} />}</QueryState>;
}
