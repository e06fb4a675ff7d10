import { useMemo } from "react";
import { useTranslation } from "react-i18next";
import {
  formatBytes,
  formatCount,
  formatDuration,
  formatRate,
  formatShare,
  formatTime,
  type WithUnit,
} from "@/models/numbers";

/** Formats of numbers and times in the language of the console. Each returns null for an unknown value. */
export function useFormat() {
  const { i18n } = useTranslation();
  const language = i18n.language;
  // The same object until the language changes: columns depend on it, and new columns sort a table of 5,000 rows again.
  return useMemo(() => {
    const t = i18n.getFixedT(language, "common");
    const withUnit: WithUnit = (unit, value) => t(`unit.${unit}`, { value });
    return {
      count: (value: number | string | bigint | null | undefined) => formatCount(value, language),
      rate: (value: number | null | undefined) => formatRate(value, language),
      bytes: (value: number | string | null | undefined) => formatBytes(value, language, withUnit),
      share: (value: number | null | undefined) => formatShare(value, language),
      duration: (seconds: number | null | undefined) => formatDuration(seconds, language, withUnit),
      time: (value: string | number | null | undefined) => formatTime(value, language),
    };
  }, [i18n, language]);
}
