import { Button } from "@mantine/core";
import { useEffect } from "react";
import { useTranslation } from "react-i18next";

/** The part of an infinite query that loads its pages. */
interface Paged {
  hasNextPage: boolean;
  isFetchingNextPage: boolean;
  isError: boolean;
  fetchNextPage: () => unknown;
}

/** Loads the next page of rows when somebody asks for it. */
export function MoreRows({ query, label }: { query: Paged; label?: string }) {
  const { t } = useTranslation();
  if (!query.hasNextPage) return null;
  return (
    <Button
      variant="default"
      loading={query.isFetchingNextPage}
      onClick={() => {
        void query.fetchNextPage();
      }}
      style={{ alignSelf: "center" }}
    >
      {label ?? t("more")}
    </Button>
  );
}

/** Loads one page after the other until the list is whole, so that a search finds everything. */
export function useAllPages({ hasNextPage, isFetchingNextPage, isError, fetchNextPage }: Paged) {
  useEffect(() => {
    if (hasNextPage && !isFetchingNextPage && !isError) void fetchNextPage();
  }, [hasNextPage, isFetchingNextPage, isError, fetchNextPage]);
}
