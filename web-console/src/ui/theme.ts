import {
  createTheme,
  defaultVariantColorsResolver,
  parseThemeColor,
  type MantineColorsTuple,
  type VariantColorsResolver,
} from "@mantine/core";
import i18next from "i18next";

// Contrast of shade 8 on white and of shade 3 on the dark background is above 4.5 (WCAG AA).
const teal: MantineColorsTuple = [
  "#e6fafd",
  "#d0f0f5",
  "#a2e0ea",
  "#71d0df",
  "#4bc2d6",
  "#34b9d0",
  "#23a9c0",
  "#108fa4",
  "#0b7285",
  "#065a6a",
];

// Mantine's light variant has text whose contrast is below 4.5 in small sizes.
const variantColorResolver: VariantColorsResolver = (input) => {
  const colors = defaultVariantColorsResolver(input);
  const parsed = parseThemeColor({ color: input.color ?? input.theme.primaryColor, theme: input.theme });
  if (input.variant !== "light" || !parsed.isThemeColor) return colors;
  const dark = `color-mix(in srgb, var(--mantine-color-${parsed.color}-9) 70%, black)`;
  return { ...colors, color: `light-dark(${dark}, var(--mantine-color-${parsed.color}-3))` };
};

export const theme = createTheme({
  primaryColor: "teal",
  primaryShade: { light: 8, dark: 8 },
  colors: { teal },
  fontFamily:
    'Inter, ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Noto Sans SC", "PingFang SC", "Microsoft YaHei", sans-serif',
  fontFamilyMonospace: 'ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace',
  variantColorResolver,
  components: {
    // Fields beside each other stay in line, whether they have a description or not.
    InputWrapper: { defaultProps: { inputWrapperOrder: ["label", "input", "description", "error"] } },
    // A function, because the language is known only when a notification is shown.
    Notification: { defaultProps: () => ({ closeButtonProps: { "aria-label": i18next.t("common:close") } }) },
  },
  defaultRadius: "sm",
  cursorType: "pointer",
  respectReducedMotion: true,
  headings: {
    fontWeight: "600",
    sizes: { h1: { fontSize: "1.25rem" }, h2: { fontSize: "1rem" }, h3: { fontSize: "0.875rem" } },
  },
});
