import { Alert, List } from "@mantine/core";

/** The reasons why an answer lacks a part, such as brokers that do not answer; nothing if it is whole. */
export function Missing({ title, reasons }: { title: string; reasons: string[] }) {
  if (reasons.length === 0) return null;
  return (
    <Alert role="status" color="orange" variant="light" title={title}>
      <List size="sm" styles={{ item: { overflowWrap: "anywhere" } }}>
        {reasons.map((reason) => (
          <List.Item key={reason}>{reason}</List.Item>
        ))}
      </List>
    </Alert>
  );
}
