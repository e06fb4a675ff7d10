import { Stack } from "@mantine/core";
import { Link } from "@tanstack/react-router";
import { useTranslation } from "react-i18next";
import type { Letter } from "@/models/dead-letters";
import { BodyViewer } from "@/ui/body-viewer";
import { Facts, Properties, type Fact } from "@/ui/facts";
import { useFormat } from "@/ui/format";
import { Ago, Name, Value } from "@/ui/value";

/** One letter: where it comes from, when it died, its body and its properties. */
export function LetterDetails({ letter, isRedriveKnown }: { letter: Letter; isRedriveKnown: boolean }) {
  const { t } = useTranslation("dead-letters");
  const format = useFormat();
  const { origin } = letter;
  const facts: Fact[] = [
    [
      t("origin"),
      <Value key="origin">
        {origin.topic === null ? null : (
          <Link to="/topics/$topic" params={{ topic: origin.topic }} className="row-link">
            <Name>{origin.topic}</Name>
          </Link>
        )}
      </Value>,
    ],
    [t("id"), <Name key="id">{letter.message_id}</Name>],
    [t("storedId"), <Name key="stored">{letter.stored_id}</Name>],
    [
      t("firstStoredId"),
      <Value key="first">
        {origin.message_id === null ? null : (
          <Link to="/messages" search={{ by: "id", topic: origin.topic ?? "", value: origin.message_id } as never}>
            <Name>{origin.message_id}</Name>
          </Link>
        )}
      </Value>,
    ],
    [t("died"), format.time(letter.dead_at)],
    [t("attempts"), format.count(letter.attempts)],
    [t("redriven"), <Redriven key="redriven" letter={letter} isKnown={isRedriveKnown} />],
    [t("keys"), <Name key="keys">{letter.keys.join(", ") || "–"}</Name>],
    [t("tag"), <Name key="tag">{letter.tag ?? "–"}</Name>],
  ];
  return (
    <Stack gap="md">
      <Facts facts={facts} />
      <BodyViewer body={letter.body} encoding={letter.encoding} />
      <Properties title={t("properties")} properties={letter.properties} />
    </Stack>
  );
}

/** When a letter was sent again. Without the metadata, nobody knows. */
export function Redriven({ letter, isKnown }: { letter: Letter; isKnown: boolean }) {
  const { t } = useTranslation("dead-letters");
  if (!isKnown) return <Value reason={t("redrivenUnknown")}>{null}</Value>;
  return letter.redriven_at === null ? <span>{t("notRedriven")}</span> : <Ago time={letter.redriven_at} />;
}
