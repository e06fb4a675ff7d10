import type { Message } from "@/api/messages";

/** Saves messages as a file, one JSON object a line, as the command line and the API write them. */
export function saveMessages(messages: readonly Message[], name: string): void {
  const lines = messages.map((message) => `${JSON.stringify(message)}\n`);
  const url = URL.createObjectURL(new Blob(lines, { type: "application/x-ndjson" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  URL.revokeObjectURL(url);
}
