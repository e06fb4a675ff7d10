/** Objectives of groups: limits on their lag, as a form edits them. */
import type { Objective, ObjectiveChange } from "@/api/objectives";
import { numberOr } from "./numbers";
import { localTime, toInstant } from "./times";

/** Every value is a text or a boolean; empty is no limit. `ignore_until` is of the reader's zone. */
export interface ObjectiveSettings {
  max_lag_seconds: string;
  max_lag_messages: string;
  ignore: boolean;
  ignore_until: string;
  reason: string;
}

export const SETTINGS = ["max_lag_seconds", "max_lag_messages", "ignore", "ignore_until", "reason"] as const;
export type SettingName = (typeof SETTINGS)[number];

export const NO_OBJECTIVE: ObjectiveSettings = {
  max_lag_seconds: "",
  max_lag_messages: "",
  ignore: false,
  ignore_until: "",
  reason: "",
};

export function toSettings(objective: Objective): ObjectiveSettings {
  return {
    max_lag_seconds: String(objective.max_lag_seconds ?? ""),
    max_lag_messages: String(objective.max_lag_messages ?? ""),
    ignore: objective.ignore,
    ignore_until: localTime(objective.ignore_until ?? ""),
    reason: objective.reason ?? "",
  };
}

/** Returns the body of a change that sets the named settings only; an emptied setting is removed. */
export function toChange(settings: ObjectiveSettings, names: readonly SettingName[]): ObjectiveChange {
  const orNull = <T>(text: string, read: (text: string) => T) => (text.trim() === "" ? null : read(text.trim()));
  const all = {
    max_lag_seconds: orNull(settings.max_lag_seconds, numberOr),
    max_lag_messages: orNull(settings.max_lag_messages, numberOr),
    ignore: settings.ignore,
    ignore_until: orNull(settings.ignore_until, toInstant),
    reason: orNull(settings.reason, (text) => text),
  };
  return Object.fromEntries(names.map((name) => [name, all[name]])) as ObjectiveChange;
}

/** Returns the options of `gantry group objective set`; null if it has none for a change, such as no reason any more. */
export function optionsOf(settings: ObjectiveSettings, names: readonly SettingName[]): string[] | null {
  const options: string[] = [];
  for (const name of names) {
    const value = settings[name];
    if (name === "ignore") options.push(value ? "--ignore" : "--no-ignore");
    else if (value !== "") {
      const text = String(value).trim();
      options.push(`--${name.replaceAll("_", "-")}`, name === "ignore_until" ? toInstant(text) : text);
    } else if (name === "max_lag_seconds") options.push("--max-lag-seconds", "0");
    else if (name === "max_lag_messages") options.push("--max-lag-messages", "-1");
    // An ignore that has ended takes its end along; the other settings can't be removed by the command line.
    else if (name !== "ignore_until" || settings.ignore) return null;
  }
  return options;
}

/** Whether an objective is ignored at a time in ms. */
export function isIgnored(objective: Objective, nowMs: number): boolean {
  return objective.ignore && (objective.ignore_until === null || Date.parse(objective.ignore_until) > nowMs);
}
