import { Autocomplete, Button, NativeSelect, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { groupKeys, resetOffsets, type OffsetReset, type ResetRequest } from "@/api/groups";
import { gantryCommand } from "@/models/commands";
import { placeOf } from "@/models/groups";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { Problem } from "@/ui/problem";
import { MovedOffsets } from "./moved-offsets";
import { useTopicsOf } from "./topics-of";

const PLACES = ["earliest", "time", "latest"] as const;

/** Moves the group in a topic. The preview says what will happen; only then it can be done. */
export function ResetOffsets({
  group,
  onClose,
  onMoved,
}: {
  group: string;
  onClose: () => void;
  onMoved: (moved: OffsetReset) => void;
}) {
  const { t } = useTranslation("groups");
  const client = useQueryClient();
  const topics = useTopicsOf(group);
  const [chosen, setChosen] = useState<string | null>(null);
  const [place, setPlace] = useState<string>("time");
  const [at, setAt] = useState("");
  const topic = chosen ?? topics[0] ?? "";
  const to = placeOf(place, at);
  const body: ResetRequest = { topic, to: to ?? "", dry_run: false };
  const preview = useMutation({ mutationFn: () => resetOffsets(group, { ...body, dry_run: true }) });
  const reset = useMutation({
    mutationFn: () => resetOffsets(group, body),
    onSuccess: async (moved) => {
      preview.reset();
      onMoved(moved);
      await client.invalidateQueries({ queryKey: groupKeys.detail(group) });
    },
  });
  // What was shown is no longer what would happen.
  const changed = () => {
    preview.reset();
    reset.reset();
  };
  const shown = reset.data ?? preview.data;
  return (
    <Dialog
      opened
      isDisposable={reset.data !== undefined}
      onClose={onClose}
      title={t("reset.title", { name: group })}
      size={1_000}
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          reset.reset();
          preview.mutate();
        }}
      >
        <Stack>
          {(reset.error ?? preview.error) !== null && <Problem error={reset.error ?? preview.error} />}
          <SimpleGrid cols={{ base: 1, sm: 3 }} spacing="sm">
            <Autocomplete
              label={t("topic")}
              required
              data={topics}
              value={topic}
              onChange={(value) => {
                setChosen(value);
                changed();
              }}
            />
            <NativeSelect
              label={t("reset.to")}
              value={place}
              data={PLACES.map((value) => ({ value, label: t(`reset.place.${value}`) }))}
              onChange={(event) => {
                setPlace(event.currentTarget.value);
                changed();
              }}
            />
            {place === "time" && (
              <TextInput
                type="datetime-local"
                step={1}
                label={t("reset.at")}
                description={t("reset.zone")}
                required
                value={at}
                onChange={(event) => {
                  setAt(event.currentTarget.value);
                  changed();
                }}
              />
            )}
          </SimpleGrid>
          {shown !== undefined && <MovedOffsets moved={shown} isPreview={reset.data === undefined} />}
          <FormEnd
            copy={{
              call: { method: "POST", path: "/v1/groups/{group}/offsets:reset", values: { group }, body },
              gantry: gantryCommand("offset", "reset", group, topic, "--to", to ?? ""),
            }}
            back={{ label: t("common:close") }}
            onBack={onClose}
            submit={{
              label: t("moved.preview"),
              isReady: topic !== "" && to !== null,
              isBusy: preview.isPending,
              isSecond: preview.data !== undefined,
            }}
          >
            {preview.data !== undefined && (
              <Button
                color="red"
                loading={reset.isPending}
                onClick={() => {
                  reset.mutate();
                }}
              >
                {t("reset.submit", { name: group })}
              </Button>
            )}
          </FormEnd>
        </Stack>
      </form>
    </Dialog>
  );
}
