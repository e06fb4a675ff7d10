import { Button, NativeSelect, SimpleGrid } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { KINDS, type AuditFilter } from "@/models/audit";
import { AddressField } from "@/ui/typing";

export const ANY: AuditFilter = { kind: "", name: "", actor: "", action: "", from: "", to: "" };

/** The filters of the trail. Names need a kind, so the field of the name is there only with one. */
export function Filters({
  filter,
  onChange,
}: {
  filter: AuditFilter;
  onChange: (change: Partial<AuditFilter>) => void;
}) {
  const { t } = useTranslation("audit");
  const text = (name: "name" | "actor" | "action", placeholder: string) => (
    <AddressField
      size="xs"
      label={t(name)}
      placeholder={placeholder}
      autoComplete="off"
      maxLength={255}
      value={filter[name]}
      onKeep={(kept) => {
        onChange({ [name]: kept });
      }}
    />
  );
  const time = (name: "from" | "to") => (
    <AddressField
      size="xs"
      type="datetime-local"
      label={t(name)}
      value={filter[name]}
      onKeep={(kept) => {
        onChange({ [name]: kept });
      }}
    />
  );
  const isAny = Object.values(filter).every((value) => value === "");
  return (
    <SimpleGrid cols={{ base: 1, xs: 2, sm: 3, lg: 7 }} spacing="sm" style={{ alignItems: "end" }}>
      <NativeSelect
        size="xs"
        label={t("kind")}
        data={[
          { value: "", label: t("anyKind") },
          ...KINDS.map((kind) => ({ value: kind, label: t(`kinds.${kind}`) })),
        ]}
        value={filter.kind}
        onChange={(event) => {
          const kind = event.currentTarget.value;
          onChange(kind === "" ? { kind, name: "" } : { kind });
        }}
      />
      {filter.kind !== "" && text("name", "orders")}
      {text("actor", "user:admin")}
      {text("action", "topic.create")}
      {time("from")}
      {time("to")}
      {!isAny && (
        <Button
          size="xs"
          variant="subtle"
          onClick={() => {
            onChange(ANY);
          }}
        >
          {t("clear")}
        </Button>
      )}
    </SimpleGrid>
  );
}
