import { expect, test } from "vitest";
import { texts as en } from "./en";
import { texts as zh } from "./zh";

const sources = import.meta.glob<string>("../**/*.{ts,tsx}", { eager: true, query: "?raw", import: "default" });

/** Keys of a namespace, with dots for nesting; the plural forms of a key count as the key. */
function keysOf(texts: Record<string, unknown>, prefix = ""): string[] {
  return Object.entries(texts).flatMap(([key, value]) =>
    typeof value === "string"
      ? [prefix + key.replace(/_(one|other)$/, "")]
      : keysOf(value as Record<string, unknown>, `${prefix}${key}.`),
  );
}

const all = (language: typeof en) =>
  Object.fromEntries(Object.entries(language).map(([name, texts]) => [name, [...new Set(keysOf(texts))].sort()]));

const valuesOf = (texts: Record<string, unknown>): string[] =>
  Object.values(texts).flatMap((value) =>
    typeof value === "string" ? [value] : valuesOf(value as Record<string, unknown>),
  );

test("both languages have the same keys", () => {
  expect(all(zh)).toEqual(all(en));
});

test("no text is empty, and Chinese texts use the same values as English ones", () => {
  const placeholders = (text: string) => [...text.matchAll(/\{\{(\w+)/g)].map((found) => found[1]).sort();
  for (const [name, texts] of Object.entries(en)) {
    expect(valuesOf(texts).filter((text) => text.trim() === "")).toEqual([]);
    const english = [...new Set(valuesOf(texts).flatMap(placeholders))].sort();
    const chinese = [...new Set(valuesOf(zh[name] ?? {}).flatMap(placeholders))].sort();
    expect(chinese, name).toEqual(english);
  }
});

test.each([
  ["Broker", "代理"],
  ["报表", "报告"],
])("Chinese texts call a thing %s everywhere, and not %s", (_, other) => {
  expect(valuesOf(zh).filter((text) => text.includes(other))).toEqual([]);
});

test("each key that the sources name exists", () => {
  const known = all(en);
  const missing: string[] = [];
  for (const [path, source] of Object.entries(sources)) {
    if (path.includes(".test.")) continue;
    const namespace = /useTranslation\("([\w-]+)"\)/.exec(source)?.[1] ?? "common";
    for (const [, key = ""] of source.matchAll(/\bt\(\s*"([^"]+)"/g)) {
      const [space, name] = key.includes(":") ? (key.split(":") as [string, string]) : [namespace, key];
      if (!known[space]?.includes(name)) missing.push(`${path}: ${space}:${name}`);
    }
  }
  expect(missing).toEqual([]);
});
