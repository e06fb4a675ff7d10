import { Text, Tooltip } from "@mantine/core";
import type { ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { visiblePieces } from "@/models/bodies";
import { ageSeconds, secondsUntil } from "@/models/numbers";
import { useFormat } from "./format";
import { useTextOfNow } from "./now";

type Moment = string | number | null | undefined;

/** A value that may be unknown. Null is shown as "unknown", with the reason if there is one; never as 0 or a dash. */
export function Value({ children, reason, unit }: { children: ReactNode; reason?: string | null; unit?: string }) {
  const { t } = useTranslation();
  if (children === null || children === undefined) {
    const unknown = (
      <Text span inherit c="dimmed" fs="italic">
        {t("unknown")}
      </Text>
    );
    return reason ? <Tooltip label={reason}>{unknown}</Tooltip> : unknown;
  }
  return (
    <span className="value">
      {children}
      {unit !== undefined && <span className="unit"> {unit}</span>}
    </span>
  );
}

/** How long ago a time was; its tooltip has the time itself. */
export function Ago({ time }: { time: Moment }) {
  const { t } = useTranslation();
  const format = useFormat();
  return (
    <TimeText
      time={time}
      textAt={(now) => {
        const age = ageSeconds(time, now);
        return age === null ? null : age < 1 ? t("justNow") : t("ago", { age: format.duration(age) });
      }}
    />
  );
}

/** How far ahead a time is, or how long ago it was; its tooltip has the time itself. */
export function When({ time }: { time: Moment }) {
  const { t } = useTranslation();
  const format = useFormat();
  return (
    <TimeText
      time={time}
      textAt={(now) => {
        const left = secondsUntil(time, now);
        if (left === null) return null;
        if (left > 0) return t("in", { age: format.duration(Math.max(1, left)) });
        return left > -1 ? t("justNow") : t("ago", { age: format.duration(-left) });
      }}
    />
  );
}

function TimeText({ time, textAt }: { time: Moment; textAt: (nowMs: number) => string | null }) {
  const format = useFormat();
  const text = useTextOfNow(textAt);
  if (text === null) return <Value>{null}</Value>;
  return (
    <Tooltip label={format.time(time)}>
      <time dateTime={new Date(time ?? 0).toISOString()}>{text}</time>
    </Tooltip>
  );
}

/** A time with its distance from now, which stays in one line: 28 Nov 2026, 15:45:00 in 9 min. */
export function TimeAndDistance({ time }: { time: string | null }) {
  const format = useFormat();
  if (time === null) return <Value>{null}</Value>;
  return (
    <>
      {format.time(time)}{" "}
      <Text span inherit c="dimmed" style={{ whiteSpace: "nowrap" }}>
        <When time={time} />
      </Text>
    </>
  );
}

/**
 * A name that others chose: it can't change the direction or the layout of the text around it, and characters that hide
 * or turn text are escapes.
 */
export function Name({ children }: { children: string }) {
  return (
    <bdi className="name">
      <VisibleText text={children} />
    </bdi>
  );
}

/** Text of strangers in which every character can be seen. */
export function VisibleText({ text }: { text: string }) {
  return visiblePieces(text).map((piece, index) =>
    piece.kind === "text" ? piece.text : <mark key={index}>{piece.text}</mark>,
  );
}
