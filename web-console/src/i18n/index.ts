/**
 * Visible text: one file for each feature and language, `en/topics.json` and `zh/topics.json`. The file's name is the
 * namespace: `useTranslation("topics")`. Texts of src/ui are in `common.json`. Only the chosen language is loaded.
 */
import i18next from "i18next";
import { initReactI18next } from "react-i18next";
import { loadCode } from "@/api/load-code";

export const LANGUAGES = { en: "English", zh: "中文" } as const;
export type Language = keyof typeof LANGUAGES;

const STORED = "gantry.language";

const loaders: Record<Language, () => Promise<{ texts: Record<string, Record<string, unknown>> }>> = {
  en: () => import("./en"),
  zh: () => import("./zh"),
};

export async function startTranslation(language: Language = firstLanguage()): Promise<void> {
  await i18next.use(initReactI18next).init({
    lng: language,
    resources: {},
    fallbackLng: false,
    defaultNS: "common",
    // React escapes every text that it shows.
    interpolation: { escapeValue: false },
    returnNull: false,
  });
  await show(language);
}

export async function changeLanguage(language: Language): Promise<void> {
  localStorage.setItem(STORED, language);
  wanted = language;
  await show(language);
}

let wanted: Language | null = null;

async function show(language: Language): Promise<void> {
  const { texts } = await loadCode(loaders[language]);
  // Another language may have been chosen while this one was on its way.
  if (wanted !== null && wanted !== language) return;
  for (const [namespace, content] of Object.entries(texts)) {
    i18next.addResourceBundle(language, namespace, content);
  }
  await i18next.changeLanguage(language);
  document.documentElement.lang = language;
}

function firstLanguage(): Language {
  const stored = localStorage.getItem(STORED);
  if (stored !== null && stored in LANGUAGES) {
    return stored as Language;
  }
  return navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
}
