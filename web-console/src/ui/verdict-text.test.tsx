// @vitest-environment jsdom
import { act, render, screen } from "@testing-library/react";
import { beforeAll, expect, test } from "vitest";
import { changeLanguage, startTranslation } from "@/i18n";
import { useVerdictText } from "./verdict-text";

beforeAll(() => startTranslation("en"));

function Shown({ sentence }: { sentence: string | null }) {
  const textOf = useVerdictText();
  return <p>{textOf(sentence) ?? "(null)"}</p>;
}

test("a sentence of a verdict follows the language of the console", async () => {
  const { rerender } = render(<Shown sentence="No consumer is connected; 1 message waits." />);
  expect(screen.getByText("No consumer is connected; 1 message waits.")).toBeTruthy();
  await act(() => changeLanguage("zh"));
  expect(screen.getByText("没有已连接的消费者；有 1 条消息等待消费。")).toBeTruthy();
  rerender(<Shown sentence={null} />);
  expect(screen.getByText("(null)")).toBeTruthy();
});
