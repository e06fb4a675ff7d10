import { Button, NativeSelect, SimpleGrid } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { ANY_TRANSACTION, STATES, type TransactionFilter } from "@/models/transactions";
import { AddressField } from "@/ui/typing";

/** The filters of transactions. */
export function Filters({
  filter,
  onChange,
}: {
  filter: TransactionFilter;
  onChange: (change: Partial<TransactionFilter>) => void;
}) {
  const { t } = useTranslation("transactions");
  const text = (name: "group" | "topic") => (
    <AddressField
      size="xs"
      label={t(name)}
      autoComplete="off"
      maxLength={255}
      value={filter[name]}
      onKeep={(kept) => {
        onChange({ [name]: kept });
      }}
    />
  );
  return (
    <SimpleGrid cols={{ base: 1, xs: 2, sm: 3, lg: 5 }} spacing="sm" style={{ alignItems: "end" }}>
      <NativeSelect
        size="xs"
        label={t("state")}
        data={[
          { value: "", label: t("anyState") },
          ...STATES.map((state) => ({ value: state, label: t(`states.${state}`) })),
        ]}
        value={filter.state}
        onChange={(event) => {
          onChange({ state: event.currentTarget.value });
        }}
      />
      {text("group")}
      {text("topic")}
      {Object.values(filter).some((value) => value !== "") && (
        <Button
          size="xs"
          variant="subtle"
          onClick={() => {
            onChange(ANY_TRANSACTION);
          }}
        >
          {t("clear")}
        </Button>
      )}
    </SimpleGrid>
  );
}
