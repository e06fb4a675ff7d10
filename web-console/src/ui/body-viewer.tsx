import { Button, Group, SegmentedControl, Stack, Text } from "@mantine/core";
import { useMemo, useState } from "react";
import { useTranslation } from "react-i18next";
import { bytesOf, hexDump, indentJson, sliceOf } from "@/models/bodies";
import { useFormat } from "./format";
import { VisibleText } from "./value";

// A body has up to 4 MiB. As one text it stops a tab for a minute, so it is shown in parts.
const SHOWN_CHARACTERS = 64 * 1024;
const SHOWN_HEX_BYTES = 16 * 1024;
const JSON_CHARACTERS_MAX = 1024 * 1024;

type View = "text" | "json" | "hex";

/** A body as text, JSON or hex. Hostile text stays text: nothing in it is markup, and what would hide is an escape. */
export function BodyViewer({ body, encoding = "text" }: { body: string; encoding?: "text" | "base64" }) {
  const { t } = useTranslation();
  const format = useFormat();
  const bytes = useMemo(() => bytesOf(body, encoding), [body, encoding]);
  const json = useMemo(
    () => (encoding === "text" && body.length <= JSON_CHARACTERS_MAX ? indentJson(body) : null),
    [body, encoding],
  );
  const views: View[] = encoding === "base64" ? ["hex"] : json === null ? ["text", "hex"] : ["json", "text", "hex"];
  const [chosen, setChosen] = useState<View | null>(null);
  const [chosenPart, setPart] = useState(0);
  const view = chosen !== null && views.includes(chosen) ? chosen : (views[0] ?? "hex");
  const limit = view === "hex" ? SHOWN_HEX_BYTES : SHOWN_CHARACTERS;
  const whole = view === "hex" ? bytes.length : view === "json" ? (json ?? "").length : body.length;
  const parts = Math.max(1, Math.ceil(whole / limit));
  const part = Math.min(chosenPart, parts - 1);
  const text = useMemo(() => {
    const [start, end] = [part * limit, (part + 1) * limit];
    if (view === "hex") return hexDump(bytes.subarray(start, end), start);
    return sliceOf(view === "json" ? (json ?? "") : body, start, end);
  }, [view, bytes, json, body, part, limit]);
  return (
    <Stack gap="xs">
      <Group justify="space-between">
        <SegmentedControl
          size="xs"
          aria-label={t("body.view")}
          value={view}
          data={views.map((value) => ({ value, label: t(`body.${value}`) }))}
          onChange={(next) => {
            setChosen(next);
            setPart(0);
          }}
        />
        <Text size="xs" c="dimmed">
          {format.bytes(bytes.length)}
        </Text>
      </Group>
      <pre className="viewer panel" tabIndex={0} aria-label={t("body.title")} style={{ padding: 12 }}>
        {view === "hex" ? text : <VisibleText text={text} />}
      </pre>
      {parts > 1 && (
        <Group justify="space-between" component="nav" aria-label={t("body.title")}>
          <Text size="sm" role="status">
            {t("body.part", { part: format.count(part + 1), parts: format.count(parts) })}
          </Text>
          <Button.Group>
            <Button
              size="xs"
              variant="default"
              disabled={part === 0}
              onClick={() => {
                setPart(part - 1);
              }}
            >
              {t("body.previous")}
            </Button>
            <Button
              size="xs"
              variant="default"
              disabled={part === parts - 1}
              onClick={() => {
                setPart(part + 1);
              }}
            >
              {t("body.next")}
            </Button>
          </Button.Group>
        </Group>
      )}
    </Stack>
  );
}
