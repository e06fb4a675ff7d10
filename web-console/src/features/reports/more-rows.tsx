import { Button } from "@mantine/core";
import { useTranslation } from "react-i18next";

interface Paged {
  hasNextPage: boolean;
  isFetchingNextPage: boolean;
  fetchNextPage: () => unknown;
}

/** Loads the next page of rows, if there is one. */
export function MoreRows({ query }: { query: Paged }) {
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
      {t("more")}
    </Button>
  );
}
