import { Alert, Button, Group, SegmentedControl, Stack, Text } from "@mantine/core";
import { useMemo, useState } from "react";
import { useTranslation } from "react-i18next";
import { bytesOf, hexDump, indentJson } from "@/models/bodies";
import { useFormat } from "./format";
import { VisibleText } from "./value";

// More text than this at once makes a tab slow; a body has up to 4 MiB.
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
  const [isWhole, setWhole] = useState(false);
  const view = chosen !== null && views.includes(chosen) ? chosen : (views[0] ?? "hex");
  const limit = view === "hex" ? SHOWN_HEX_BYTES : SHOWN_CHARACTERS;
  const whole = view === "hex" ? bytes.length : view === "json" ? (json ?? "").length : body.length;
  const isCut = !isWhole && whole > limit;
  const text = useMemo(() => {
    const end = isCut ? limit : undefined;
    if (view === "hex") return hexDump(bytes.subarray(0, end));
    return (view === "json" ? (json ?? "") : body).slice(0, end);
  }, [view, bytes, json, body, isCut, limit]);
  return (
    <Stack gap="xs">
      <Group justify="space-between">
        <SegmentedControl
          size="xs"
          aria-label={t("body.view")}
          value={view}
          data={views.map((value) => ({ value, label: t(`body.${value}`) }))}
          onChange={setChosen}
        />
        <Text size="xs" c="dimmed">
          {format.bytes(bytes.length)}
        </Text>
      </Group>
      <pre className="viewer panel" tabIndex={0} aria-label={t("body.title")} style={{ padding: 12 }}>
        {view === "hex" ? text : <VisibleText text={text} />}
      </pre>
      {isCut && (
        <Alert variant="light" color="gray" p="xs">
          <Group justify="space-between">
            <Text size="sm">{t("body.cut", { shown: format.bytes(limit) })}</Text>
            <Button
              size="xs"
              variant="default"
              onClick={() => {
                setWhole(true);
              }}
            >
              {t("body.all")}
            </Button>
          </Group>
        </Alert>
      )}
    </Stack>
  );
}
