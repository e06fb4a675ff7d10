import { useCallback } from "react";
import { useTranslation } from "react-i18next";
import { translateVerdict, type VerdictTexts } from "@/models/verdict-texts";

/** The cause, the next step and other sentences of a lag verdict in the language of the console; null stays null. */
export function useVerdictText(): (sentence: string | null) => string | null {
  const { i18n } = useTranslation();
  const language = i18n.language;
  return useCallback(
    (sentence) => {
      if (sentence === null || language === "en") return sentence;
      const texts = i18n.getResourceBundle(language, "verdicts") as VerdictTexts | undefined;
      return translateVerdict(sentence, texts ?? {});
    },
    [i18n, language],
  );
}
