import { Alert, Button, List, NumberInput, Radio, Stack, Text } from "@mantine/core";
import { useMutation } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import {
  RATE_DEFAULT,
  RATE_MAX,
  redriveBody,
  redriveCommand,
  type Redrive,
  type Selection,
} from "@/models/dead-letters";
import type { Job } from "@/models/jobs";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { useFormat } from "@/ui/format";
import { Problem } from "@/ui/problem";
import { Name } from "@/ui/value";
import { previewRedrive, startRedrive } from "./queries";

/** Sends letters again. The preview says how many; only then it can be done. */
export function RedriveDialog({
  group,
  selection,
  onClose,
  onStarted,
}: {
  group: string;
  selection: Selection;
  onClose: () => void;
  onStarted: (job: Job) => void;
}) {
  const { t } = useTranslation("dead-letters");
  const [to, setTo] = useState("retry");
  const [rate, setRate] = useState<string | number>(RATE_DEFAULT);
  const redrive: Redrive = { selection, toOrigin: to === "origin", ratePerS: Number(rate) };
  const preview = useMutation({ mutationFn: () => previewRedrive(group, redrive) });
  const start = useMutation({ mutationFn: () => startRedrive(group, redrive), onSuccess: onStarted });
  const error = start.error ?? preview.error;
  const isRate = Number.isInteger(rate) && redrive.ratePerS >= 1 && redrive.ratePerS <= RATE_MAX;
  return (
    <Dialog opened onClose={onClose} size="lg" title={t("redrive.title", { name: group })}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          start.reset();
          preview.mutate();
        }}
      >
        <Stack>
          {error !== null && <Problem error={error} />}
          <Radio.Group label={t("redrive.to")} value={to} onChange={setTo}>
            <Stack gap={6} mt={6}>
              <Radio value="retry" label={t("redrive.retry", { name: group })} />
              <Radio value="origin" label={t("redrive.origin")} />
            </Stack>
          </Radio.Group>
          <NumberInput
            label={t("redrive.rate")}
            min={1}
            max={RATE_MAX}
            allowDecimal={false}
            clampBehavior="none"
            error={isRate ? null : t("redrive.rateRange", { max: RATE_MAX })}
            value={rate}
            onChange={setRate}
          />
          {preview.data !== undefined && <Preview selected={preview.data.selected} sample={preview.data.sample} />}
          <FormEnd
            copy={{
              call: {
                method: "POST",
                path: "/v1/groups/{group}/dead-letters:redrive",
                values: { group },
                body: redriveBody(redrive, false),
              },
              gantry: redriveCommand(group, redrive),
            }}
            back={{ label: t("common:close") }}
            onBack={onClose}
            submit={{
              label: t("redrive.preview"),
              isReady: isRate,
              isBusy: preview.isPending,
              isSecond: preview.data !== undefined,
            }}
          >
            {preview.data !== undefined && preview.data.selected !== 0 && (
              <Button
                disabled={!isRate}
                loading={start.isPending}
                onClick={() => {
                  start.mutate();
                }}
              >
                {t("redrive.submit")}
              </Button>
            )}
          </FormEnd>
        </Stack>
      </form>
    </Dialog>
  );
}

function Preview({ selected, sample }: { selected: number | null; sample: { message_id: string; body: string }[] }) {
  const { t } = useTranslation("dead-letters");
  const format = useFormat();
  const count =
    selected === null ? t("redrive.many") : t("redrive.count", { count: selected, shown: format.count(selected) });
  return (
    <Alert role="status" color={selected === 0 ? "gray" : "teal"} variant="light" title={count}>
      {sample.length > 0 && (
        <List size="sm" styles={{ item: { overflowWrap: "anywhere" } }}>
          {sample.map((letter, at) => (
            <List.Item key={at}>
              <Name>{letter.message_id}</Name>
            </List.Item>
          ))}
        </List>
      )}
      <Text size="sm">{t("redrive.stay")}</Text>
    </Alert>
  );
}
