import { Button, SimpleGrid } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { ANY_TIME, type DueFilter } from "@/models/scheduled";
import { AddressField } from "@/ui/typing";

/** The topic, and the filters of what waits there. */
export function Filters({
  topic,
  filter,
  onChange,
}: {
  topic: string;
  filter: DueFilter;
  onChange: (change: Partial<DueFilter & { topic: string }>) => void;
}) {
  const { t } = useTranslation("scheduled");
  const field = (name: "topic" | keyof DueFilter, value: string, type = "text") => (
    <AddressField
      size="xs"
      type={type}
      label={t(name)}
      required={name === "topic"}
      withAsterisk={false}
      autoComplete="off"
      maxLength={255}
      value={value}
      onKeep={(kept) => {
        onChange({ [name]: kept });
      }}
    />
  );
  return (
    <SimpleGrid cols={{ base: 1, xs: 2, sm: 3, lg: 5 }} spacing="sm" style={{ alignItems: "end" }}>
      {field("topic", topic)}
      {field("from", filter.from, "datetime-local")}
      {field("to", filter.to, "datetime-local")}
      {(filter.from !== "" || filter.to !== "") && (
        <Button
          size="xs"
          variant="subtle"
          onClick={() => {
            onChange(ANY_TIME);
          }}
        >
          {t("clear")}
        </Button>
      )}
    </SimpleGrid>
  );
}
