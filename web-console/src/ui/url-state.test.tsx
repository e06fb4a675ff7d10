// @vitest-environment jsdom
import { useRouter } from "@tanstack/react-router";
import { act, fireEvent, screen, waitFor } from "@testing-library/react";
import { expect, test } from "vitest";
import { renderView } from "@/testing/render";
import { useUrlState } from "./url-state";

let back: () => void = () => undefined;

function Page() {
  const [{ q, item }, change] = useUrlState({ q: "", item: "" });
  const router = useRouter();
  back = () => {
    router.history.back();
  };
  const button = (name: string, run: () => void) => <button onClick={run}>{name}</button>;
  return (
    <>
      <p>{`q=${q} item=${item}`}</p>
      {button("search", () => {
        change({ q: "x" }, { push: true });
      })}
      {button("filter", () => {
        change({ q: "y" });
      })}
      {button("open", () => {
        change({ item: "1" }, { panel: "open" });
      })}
      {button("other", () => {
        change({ item: "2" }, { panel: "open" });
      })}
      {button("close", () => {
        change({ item: "" }, { panel: "close" });
      })}
    </>
  );
}

const press = async (name: string) => {
  await act(async () => {
    fireEvent.click(screen.getByText(name));
    await Promise.resolve();
  });
};
const shows = (text: string) =>
  waitFor(() => {
    expect(screen.getByText(text)).toBeTruthy();
  });

test("a step back closes the panel, and the next one leaves the search", async () => {
  await renderView(<Page />, { path: "/list" });
  await press("search");
  await press("open");
  await press("other");
  await shows("q=x item=2");
  act(back);
  await shows("q=x item=");
  act(back);
  await shows("q= item=");
});

test("closing a panel takes its entry from the history", async () => {
  const { address } = await renderView(<Page />, { path: "/list" });
  await press("search");
  await press("open");
  await press("filter");
  await press("close");
  await shows("q=x item=");
  await press("open");
  await press("close");
  await shows("q=x item=");
  act(back);
  await shows("q= item=");
  expect(address()).toBe("/list");
});

test("a panel that a link opened is closed in its place", async () => {
  const { address } = await renderView(<Page />, { path: "/list", at: "/list?item=9" });
  await press("close");
  await shows("q= item=");
  expect(address()).toBe("/list");
});
