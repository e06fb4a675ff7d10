import { Button, SimpleGrid } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { ANY_LETTER, type LetterFilter } from "@/models/dead-letters";
import { AddressField } from "@/ui/typing";

/** The group, and the filters of its letters. */
export function Filters({
  group,
  filter,
  onChange,
}: {
  group: string;
  filter: LetterFilter;
  onChange: (change: Partial<LetterFilter & { group: string }>) => void;
}) {
  const { t } = useTranslation("dead-letters");
  const field = (name: "group" | keyof LetterFilter, value: string, type = "text") => (
    <AddressField
      size="xs"
      type={type}
      label={t(name)}
      required={name === "group"}
      withAsterisk={false}
      autoComplete="off"
      maxLength={255}
      value={value}
      onKeep={(kept) => {
        onChange({ [name]: kept });
      }}
    />
  );
  const isAny = Object.values(filter).every((value) => value === "");
  return (
    <SimpleGrid cols={{ base: 1, xs: 2, sm: 3, lg: 6 }} spacing="sm" style={{ alignItems: "end" }}>
      {field("group", group)}
      {field("topic", filter.topic)}
      {field("tag", filter.tag)}
      {field("from", filter.from, "datetime-local")}
      {field("to", filter.to, "datetime-local")}
      {!isAny && (
        <Button
          size="xs"
          variant="subtle"
          onClick={() => {
            onChange(ANY_LETTER);
          }}
        >
          {t("clear")}
        </Button>
      )}
    </SimpleGrid>
  );
}
