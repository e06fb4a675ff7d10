import { Stack, Table, Title } from "@mantine/core";
import type { ReactNode } from "react";
import { Name } from "./value";

/** A fact about one thing: its label and its value. */
export type Fact = [label: string, value: ReactNode];

/** Facts about one thing, side by side as far as there is room. */
export function Facts({ facts }: { facts: readonly Fact[] }) {
  return (
    <dl className="facts">
      {facts.map(([label, value]) => (
        <div key={label}>
          <dt>{label}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** Properties of a message by name; nothing if it has none. */
export function Properties({ title, properties }: { title: string; properties: Readonly<Record<string, unknown>> }) {
  const rows = Object.entries(properties);
  if (rows.length === 0) return null;
  return (
    <Stack gap="md">
      <Title order={3}>{title}</Title>
      <Table aria-label={title} layout="fixed">
        <Table.Tbody>
          {rows.map(([name, value]) => (
            <Table.Tr key={name}>
              <Table.Th scope="row" w="34%" fw={400} style={{ overflowWrap: "anywhere" }}>
                <Name>{name}</Name>
              </Table.Th>
              <Table.Td style={{ overflowWrap: "anywhere" }}>
                <Name>{String(value)}</Name>
              </Table.Td>
            </Table.Tr>
          ))}
        </Table.Tbody>
      </Table>
    </Stack>
  );
}
