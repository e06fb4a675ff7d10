// @vitest-environment jsdom
import { act, fireEvent, screen } from "@testing-library/react";
import { useNavigate } from "@tanstack/react-router";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { renderView } from "@/testing/render";
import { SearchField, useTyped } from "./typing";
import { useUrlState } from "./url-state";

const PAUSE_MS = 300;

function Page() {
  const [url, setUrl] = useUrlState({ q: "" });
  const navigate = useNavigate();
  const search = useTyped(url.q, (q) => {
    setUrl({ q });
  });
  return (
    <>
      <SearchField label="Search" typed={search} />
      <p>{`shows ${search.text}`}</p>
      <button
        type="button"
        onClick={() => {
          void navigate({ to: ".", search: { q: "link" } as never });
        }}
      >
        Link
      </button>
    </>
  );
}

const field = () => screen.getByRole<HTMLInputElement>("textbox", { name: "Search" });
const type = (value: string) => {
  fireEvent.change(field(), { target: { value } });
};
const pause = (ms: number) => act(() => vi.advanceTimersByTimeAsync(ms));

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
});
afterEach(() => vi.useRealTimers());

test("a key is shown at once, and the address follows when the typing pauses", async () => {
  const { address } = await renderView(<Page />, { at: "/?q=first" });
  expect(field().value).toBe("first");
  type("or");
  expect(screen.getByText("shows or")).toBeTruthy();
  await pause(PAUSE_MS - 1);
  type("ord");
  await pause(PAUSE_MS - 1);
  expect(address()).toBe("/?q=first");
  await pause(1);
  expect(address()).toBe("/?q=ord");
  expect(field().value).toBe("ord");
});

test("who leaves the field or presses Enter does not wait for the address", async () => {
  const { address } = await renderView(<Page />);
  type("ord");
  fireEvent.blur(field());
  await pause(0);
  expect(address()).toBe("/?q=ord");
  type("");
  fireEvent.keyDown(field(), { key: "Enter" });
  await pause(0);
  expect(address()).toBe("/");
});

test("the text of a link replaces the typed one, also one that the address does not have yet", async () => {
  const { address } = await renderView(<Page />);
  type("ord");
  await pause(PAUSE_MS);
  type("orders");
  fireEvent.click(screen.getByRole("button", { name: "Link" }));
  await pause(2 * PAUSE_MS);
  expect(address()).toBe("/?q=link");
  expect(field().value).toBe("link");
  expect(screen.getByText("shows link")).toBeTruthy();
});
