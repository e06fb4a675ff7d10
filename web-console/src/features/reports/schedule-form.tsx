import { Autocomplete, Group, Radio, Stack, Text, TextInput } from "@mantine/core";
import { notifications } from "@mantine/notifications";
import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { asApiError } from "@/api/api-error";
import { gantryCommand, type Call } from "@/models/commands";
import type { Report, ScheduleChange } from "@/models/reports";
import { Dialog } from "@/ui/dialog";
import { FormEnd } from "@/ui/form-end";
import { Problem } from "@/ui/problem";
import { keys, setSchedule } from "./queries";

const ZONES_SHOWN = 20;
const zones = ["UTC", ...Intl.supportedValuesOf("timeZone")];

type Mode = "cron" | "demand" | "settings";

/** Changes when a job runs: by a cron expression, on demand only, or as the scheduler's settings say. */
export function ScheduleForm({ report, onClose }: { report: Report; onClose: () => void }) {
  const { t } = useTranslation("reports");
  const client = useQueryClient();
  const set = report.schedule_set;
  const [mode, setMode] = useState<Mode>(set?.cron === null ? "demand" : "cron");
  const [cron, setCron] = useState(set?.cron ?? report.schedule ?? "");
  const [zone, setZone] = useState(set?.time_zone ?? report.time_zone ?? "UTC");
  const change: ScheduleChange | null =
    mode === "settings" ? null : { cron: mode === "cron" ? cron.trim() : null, time_zone: zone.trim() };
  const save = useMutation({
    mutationFn: () => setSchedule(report.job, change),
    onSuccess: async () => {
      notifications.show({ message: t("schedule.saved"), color: "green" });
      await client.invalidateQueries({ queryKey: keys.list() });
      onClose();
    },
  });
  const problem = save.error === null ? null : asApiError(save.error).problem;
  const errorOf = (field: string) => (problem?.field === field ? problem.detail : null);
  const isAtField = problem?.field === "/cron" || problem?.field === "/time_zone";
  return (
    <Dialog
      opened
      onClose={onClose}
      title={t("schedule.titleOf", { name: t(`job.${report.job}.name`, { defaultValue: report.job }) })}
      size="lg"
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          save.mutate();
        }}
      >
        <Stack>
          {save.error !== null && !isAtField && <Problem error={save.error} />}
          <Radio.Group
            label={t("schedule.when")}
            value={mode}
            onChange={(value) => {
              setMode(value as Mode);
            }}
          >
            <Stack gap="xs" mt={6}>
              <Radio value="cron" label={t("schedule.byCron")} />
              <Radio value="demand" label={t("schedule.onDemand")} />
              <Radio value="settings" label={t("schedule.bySettings")} />
            </Stack>
          </Radio.Group>
          {mode === "cron" && (
            <Group align="flex-start" grow preventGrowOverflow={false}>
              <TextInput
                label={t("schedule.cron")}
                description={t("schedule.cronHelp")}
                placeholder="0 8 * * 1-5"
                required
                autoComplete="off"
                miw={210}
                styles={{ input: { fontFamily: "var(--mantine-font-family-monospace)" } }}
                value={cron}
                error={errorOf("/cron")}
                onChange={(event) => {
                  setCron(event.currentTarget.value);
                }}
              />
              <Autocomplete
                label={t("schedule.zone")}
                description={t("schedule.zoneHelp")}
                required
                miw={210}
                data={zones}
                limit={ZONES_SHOWN}
                value={zone}
                error={errorOf("/time_zone")}
                onChange={setZone}
              />
            </Group>
          )}
          <Text size="sm" c="dimmed">
            {t(`schedule.effect.${mode}`)}
          </Text>
          <FormEnd
            copy={{ call: callOf(report.job, change), gantry: commandOf(report.job, change) }}
            onBack={onClose}
            submit={{
              label: t("schedule.save"),
              isReady: mode !== "settings" || set !== null,
              isBusy: save.isPending,
            }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}

function callOf(job: string, change: ScheduleChange | null): Call {
  const call = { path: "/v1/reports/{job}/schedule", values: { job } };
  return change === null ? { method: "DELETE", ...call } : { method: "PUT", ...call, body: change };
}

function commandOf(job: string, change: ScheduleChange | null): string {
  const words = ["report", "schedule", job];
  if (change === null) return gantryCommand(...words, "--default");
  if (change.cron === null) return gantryCommand(...words, "--on-demand");
  return gantryCommand(...words, "--cron", change.cron, "--time-zone", change.time_zone);
}
