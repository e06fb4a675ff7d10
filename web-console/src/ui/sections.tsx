import { Tabs } from "@mantine/core";
import { useState, type ReactNode } from "react";
import { useUrlState } from "./url-state";

export interface Section {
  name: string;
  label: string;
  view: ReactNode;
  /** Whether this gateway and this caller have it; true by default. */
  isThere?: boolean;
  /** Whether it keeps what was typed into it while another section is shown; false by default. */
  isKept?: boolean;
}

/**
 * The sections of a page, as tabs. The address names the chosen one, unless it is `initial`, and a step back in the
 * browser returns to the one before. `left` is what the address no longer has in another section. `refusal` is shown in
 * place of a section.
 */
export function Sections({
  sections,
  initial = sections[0]?.name ?? "",
  left = {},
  refusal = null,
}: {
  sections: readonly Section[];
  initial?: string;
  left?: Record<string, string>;
  refusal?: ReactNode;
}) {
  const [url, setUrl] = useUrlState<Record<string, string>>({ tab: initial });
  const there = sections.filter((section) => section.isThere !== false);
  const shown = there.find((section) => section.name === url.tab) ?? there[0];
  const [kept, setKept] = useState<ReadonlySet<string>>(new Set());
  if (shown?.isKept === true && !kept.has(shown.name)) setKept(new Set([...kept, shown.name]));
  return (
    <Tabs
      value={refusal === null ? (shown?.name ?? "") : null}
      keepMounted={false}
      onChange={(tab) => {
        setUrl({ ...left, tab: tab ?? "" }, { push: true });
      }}
    >
      <Tabs.List mb="sm">
        {there.map(({ name, label }) => (
          <Tabs.Tab key={name} value={name}>
            {label}
          </Tabs.Tab>
        ))}
      </Tabs.List>
      {refusal}
      {there.map(({ name, view }) => (
        <Tabs.Panel key={name} value={name} keepMounted={kept.has(name)}>
          {view}
        </Tabs.Panel>
      ))}
    </Tabs>
  );
}
