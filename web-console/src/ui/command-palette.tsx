import { useMantineColorScheme } from "@mantine/core";
import { Spotlight, type SpotlightActionData } from "@mantine/spotlight";
import { IconLanguage, IconMoon, IconSearch, IconSun } from "@tabler/icons-react";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { changeLanguage, LANGUAGES, type Language } from "@/i18n";
import { usePages } from "./navigation";
import { useOpenDialog } from "./open-dialogs";

const ICON_PX = 18;

/** Ctrl+K: every page and command by a few letters. */
export function CommandPalette() {
  const { t } = useTranslation();
  const navigate = useNavigate();
  const { setColorScheme } = useMantineColorScheme();
  const pages = usePages().map(({ to, feature, icon: Icon }): SpotlightActionData => ({
    id: to,
    label: t(`${feature}:nav`),
    keywords: [feature],
    leftSection: <Icon size={ICON_PX} />,
    onClick: () => void navigate({ to }),
  }));
  const commands: SpotlightActionData[] = [
    {
      id: "light",
      label: t("shell.light"),
      leftSection: <IconSun size={ICON_PX} />,
      onClick: () => {
        setColorScheme("light");
      },
    },
    {
      id: "dark",
      label: t("shell.dark"),
      leftSection: <IconMoon size={ICON_PX} />,
      onClick: () => {
        setColorScheme("dark");
      },
    },
    ...Object.entries(LANGUAGES).map(([language, name]) => ({
      id: language,
      label: name,
      keywords: [t("shell.language")],
      leftSection: <IconLanguage size={ICON_PX} />,
      onClick: () => void changeLanguage(language as Language),
    })),
  ];
  const [isOpen, setOpen] = useState(false);
  useOpenDialog(isOpen, null);
  return (
    <Spotlight
      returnFocus={false}
      onSpotlightOpen={() => {
        setOpen(true);
      }}
      onSpotlightClose={() => {
        setOpen(false);
      }}
      actions={[...pages, ...commands]}
      shortcut={["mod + K", "/"]}
      nothingFound={t("shell.paletteNothing")}
      searchProps={{
        leftSection: <IconSearch size={ICON_PX} />,
        placeholder: t("shell.paletteHint"),
        "aria-label": t("shell.paletteHint"),
      }}
    />
  );
}
