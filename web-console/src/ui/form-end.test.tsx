// @vitest-environment jsdom
import { fireEvent, screen } from "@testing-library/react";
import { expect, test, vi } from "vitest";
import { renderView } from "@/testing/render";
import { FormEnd } from "./form-end";

test("the end of a form leaves it or sends it", async () => {
  const [onBack, onSubmit] = [vi.fn(), vi.fn((event: Event) => event.preventDefault())];
  await renderView(
    <form
      onSubmit={(event) => {
        onSubmit(event.nativeEvent);
      }}
    >
      <FormEnd
        copy={{ call: { method: "GET", path: "/v1/topics" } }}
        onBack={onBack}
        submit={{ label: "Delete", isDangerous: true }}
      />
    </form>,
  );
  const names = screen.getAllByRole("button").map((each) => each.getAttribute("aria-label") ?? each.textContent);
  expect(names).toEqual(["Copy as", "Cancel", "Delete"]);
  fireEvent.click(screen.getByRole("button", { name: "Cancel" }));
  expect([onBack.mock.calls.length, onSubmit.mock.calls.length]).toEqual([1, 0]);
  fireEvent.click(screen.getByRole("button", { name: "Delete" }));
  expect([onBack.mock.calls.length, onSubmit.mock.calls.length]).toEqual([1, 1]);
});

test("buttons that are not ready can't be used", async () => {
  const onClick = vi.fn();
  await renderView(
    <FormEnd
      back={{ label: "Discard", isReady: false }}
      onBack={vi.fn()}
      submit={{ label: "Save", onClick, isReady: false }}
    />,
  );
  const disabled = (name: string) => screen.getByRole<HTMLButtonElement>("button", { name }).disabled;
  expect([disabled("Discard"), disabled("Save")]).toEqual([true, true]);
  fireEvent.click(screen.getByRole("button", { name: "Save" }));
  expect(onClick).not.toHaveBeenCalled();
});
