import { ActionIcon, AppShell, Burger, Button, Group, Kbd, Menu, useMantineColorScheme } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { openSpotlight } from "@mantine/spotlight";
import { IconDeviceDesktop, IconLanguage, IconMoon, IconSearch, IconSun } from "@tabler/icons-react";
import { Link, Outlet, useLocation } from "@tanstack/react-router";
import { useEffect, useRef } from "react";
import { useTranslation } from "react-i18next";
import { changeLanguage, LANGUAGES, type Language } from "@/i18n";
import { AccountMenu } from "./account-menu";
import { CommandPalette } from "./command-palette";
import { Logo } from "./logo";
import { usePages } from "./navigation";

const ICON_PX = 18;
const MAIN = "content";

/** The frame of all pages: skip link, header, navigation, content; focus moves in this order. */
export function Shell() {
  const { t } = useTranslation();
  const [isOpen, { toggle, close }] = useDisclosure(false);
  const { pathname } = useLocation();
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  useEffect(() => {
    close();
    // A screen reader hears of the new page; the first page is read from its top anyway.
    if (!isFirst.current) main.current?.focus({ preventScroll: true });
    isFirst.current = false;
  }, [pathname, close]);
  return (
    <AppShell
      header={{ height: 52 }}
      navbar={{ width: 216, breakpoint: "sm", collapsed: { mobile: !isOpen } }}
      styles={{ header: { background: "var(--surface)" }, navbar: { background: "var(--surface)" } }}
    >
      <a className="skip-link" href={`#${MAIN}`}>
        {t("skip")}
      </a>
      <AppShell.Header>
        <Group h="100%" px="md" justify="space-between" wrap="nowrap">
          <Group gap="sm" wrap="nowrap">
            <Burger
              opened={isOpen}
              onClick={toggle}
              hiddenFrom="sm"
              size="sm"
              aria-label={t("shell.openNavigation")}
              aria-expanded={isOpen}
            />
            <Logo />
          </Group>
          <Group gap={4} wrap="nowrap">
            <Button
              variant="default"
              size="xs"
              visibleFrom="xs"
              leftSection={<IconSearch size={14} />}
              rightSection={<Kbd size="xs">Ctrl K</Kbd>}
              onClick={openSpotlight}
            >
              {t("shell.palette")}
            </Button>
            <ActionIcon
              variant="subtle"
              color="gray"
              hiddenFrom="xs"
              onClick={openSpotlight}
              aria-label={t("shell.palette")}
            >
              <IconSearch size={ICON_PX} />
            </ActionIcon>
            <ThemeMenu />
            <LanguageMenu />
            <AccountMenu />
          </Group>
        </Group>
      </AppShell.Header>
      <AppShell.Navbar p="xs" aria-label={t("shell.navigation")}>
        <Navigation />
      </AppShell.Navbar>
      <AppShell.Main id={MAIN} ref={main} tabIndex={-1}>
        <Outlet />
      </AppShell.Main>
      <CommandPalette />
    </AppShell>
  );
}

function Navigation() {
  const { t } = useTranslation();
  return usePages().map(({ to, feature, icon: Icon }) => (
    <Link
      key={to}
      to={to}
      className="nav-link"
      activeOptions={{ exact: to === "/" }}
      activeProps={{ "aria-current": "page" }}
    >
      <Icon size={ICON_PX} stroke={1.6} aria-hidden />
      {t(`${feature}:nav`)}
    </Link>
  ));
}

function ThemeMenu() {
  const { t } = useTranslation();
  const { setColorScheme, colorScheme } = useMantineColorScheme();
  const icons = { light: IconSun, dark: IconMoon, auto: IconDeviceDesktop };
  const Current = icons[colorScheme];
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" aria-label={t("shell.theme")}>
          <Current size={ICON_PX} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        {(["light", "dark", "auto"] as const).map((scheme) => {
          const Icon = icons[scheme];
          return (
            <Menu.Item
              key={scheme}
              leftSection={<Icon size={ICON_PX} />}
              onClick={() => {
                setColorScheme(scheme);
              }}
            >
              {t(`shell.${scheme}`)}
            </Menu.Item>
          );
        })}
      </Menu.Dropdown>
    </Menu>
  );
}

function LanguageMenu() {
  const { t } = useTranslation();
  return (
    <Menu position="bottom-end">
      <Menu.Target>
        <ActionIcon variant="subtle" color="gray" aria-label={t("shell.language")}>
          <IconLanguage size={ICON_PX} />
        </ActionIcon>
      </Menu.Target>
      <Menu.Dropdown>
        {Object.entries(LANGUAGES).map(([language, name]) => (
          <Menu.Item key={language} lang={language} onClick={() => void changeLanguage(language as Language)}>
            {name}
          </Menu.Item>
        ))}
      </Menu.Dropdown>
    </Menu>
  );
}
