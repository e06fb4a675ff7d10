import { Button, SimpleGrid, Stack, TextInput } from "@mantine/core";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { cloneOffsets, groupKeys, type OffsetReset } from "@/api/groups";
import { gantryCommand } from "@/models/commands";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { Problem } from "@/ui/problem";
import { MovedOffsets } from "./moved-offsets";

/** Sets the offsets of the group to those of another group. The preview says what will happen. */
export function CloneOffsets({
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
  const [from, setFrom] = useState("");
  const [topic, setTopic] = useState("");
  const body = { from_group: from.trim(), topic: topic.trim() === "" ? null : topic.trim(), dry_run: false };
  const preview = useMutation({ mutationFn: () => cloneOffsets(group, { ...body, dry_run: true }) });
  const clone = useMutation({
    mutationFn: () => cloneOffsets(group, body),
    onSuccess: async (moved) => {
      preview.reset();
      onMoved(moved);
      await client.invalidateQueries({ queryKey: groupKeys.detail(group) });
    },
  });
  const changed = () => {
    preview.reset();
    clone.reset();
  };
  const shown = clone.data ?? preview.data;
  return (
    <Dialog
      opened
      isDisposable={clone.data !== undefined}
      onClose={onClose}
      title={t("clone.title", { name: group })}
      size={1_000}
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          clone.reset();
          preview.mutate();
        }}
      >
        <Stack>
          {(clone.error ?? preview.error) !== null && <Problem error={clone.error ?? preview.error} />}
          <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
            <TextInput
              label={t("clone.from")}
              required
              data-autofocus
              value={from}
              onChange={(event) => {
                setFrom(event.currentTarget.value);
                changed();
              }}
            />
            <TextInput
              label={t("topic")}
              description={t("clone.allTopics")}
              value={topic}
              onChange={(event) => {
                setTopic(event.currentTarget.value);
                changed();
              }}
            />
          </SimpleGrid>
          {shown !== undefined && <MovedOffsets moved={shown} isPreview={clone.data === undefined} />}
          <FormEnd
            copy={{
              call: { method: "POST", path: "/v1/groups/{group}/offsets:clone", values: { group }, body },
              gantry: gantryCommand(
                "offset",
                "clone",
                group,
                body.from_group,
                ...(body.topic === null ? [] : ["--topic", body.topic]),
              ),
            }}
            back={{ label: t("common:close") }}
            onBack={onClose}
            submit={{
              label: t("moved.preview"),
              isReady: body.from_group !== "",
              isBusy: preview.isPending,
              isSecond: preview.data !== undefined,
            }}
          >
            {preview.data !== undefined && (
              <Button
                color="red"
                loading={clone.isPending}
                onClick={() => {
                  clone.mutate();
                }}
              >
                {t("clone.submit", { name: group })}
              </Button>
            )}
          </FormEnd>
        </Stack>
      </form>
    </Dialog>
  );
}
