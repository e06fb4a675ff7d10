import { useMantineColorScheme } from "@mantine/core";
import { Spotlight, type SpotlightActionData } from "@mantine/spotlight";
import { IconLanguage, IconMoon, IconSearch, IconStack2, IconSun, IconUsersGroup } from "@tabler/icons-react";
import { useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import { useTranslation } from "react-i18next";
import { changeLanguage, LANGUAGES, type Language } from "@/i18n";
import { usePages } from "./navigation";
import { useOpenDialog } from "./open-dialogs";
import { useFoundNames } from "./palette-names";

const ICON_PX = 18;

/** Ctrl+K: every page, topic, group and command by a few letters. */
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
  const [search, setSearch] = useState("");
  const found = useFoundNames(isOpen ? search : "");
  const named = (kind: "topics" | "groups", open: (name: string) => void) =>
    found[kind].map((name): SpotlightActionData => ({
      id: `${kind} ${name}`,
      label: name,
      description: t(`${kind}:nav`),
      // The text by which names are found; the palette itself looks for the whole text.
      keywords: [search],
      leftSection: kind === "topics" ? <IconStack2 size={ICON_PX} /> : <IconUsersGroup size={ICON_PX} />,
      onClick: () => {
        open(name);
      },
    }));
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
      query={search}
      onQueryChange={setSearch}
      scrollable
      actions={[
        ...pages,
        ...named("topics", (topic) => void navigate({ to: "/topics/$topic", params: { topic } })),
        ...named("groups", (group) => void navigate({ to: "/groups/$group", params: { group } })),
        ...commands,
      ]}
      shortcut={["mod + K", "/"]}
      attributes={{ content: { "aria-label": t("shell.palette") } }}
      nothingFound={t("shell.paletteNothing")}
      searchProps={{
        leftSection: <IconSearch size={ICON_PX} />,
        placeholder: t("shell.paletteHint"),
        "aria-label": t("shell.paletteHint"),
      }}
    />
  );
}
