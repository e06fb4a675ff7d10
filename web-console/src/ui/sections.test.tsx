// @vitest-environment jsdom
import { useRouter } from "@tanstack/react-router";
import { screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, test } from "vitest";
import { renderView } from "@/testing/render";
import { Sections } from "./sections";
import { useUrlState } from "./url-state";

function Filter() {
  const [{ q }, change] = useUrlState({ q: "" });
  return (
    <button
      onClick={() => {
        change({ q: "x" });
      }}
    >{`filter ${q}`}</button>
  );
}

function Page() {
  const { history } = useRouter();
  return (
    <>
      <button
        onClick={() => {
          history.back();
        }}
      >
        back
      </button>
      <Sections
        left={{ q: "" }}
        sections={[
          { name: "one", label: "One", view: <Filter /> },
          { name: "two", label: "Two", view: "content of two" },
          { name: "three", label: "Three", view: "content of three", isThere: false },
        ]}
      />
    </>
  );
}

const isChosen = (name: string) =>
  waitFor(() => {
    expect(screen.getByRole("tab", { name, selected: true })).toBeTruthy();
  });

test("a step back returns to the section before, with its filter", async () => {
  const { address } = await renderView(<Page />, { path: "/topics" });
  await isChosen("One");
  await userEvent.click(screen.getByText("filter"));
  await userEvent.click(screen.getByRole("tab", { name: "Two" }));
  await isChosen("Two");
  expect(screen.getByText("content of two")).toBeTruthy();
  expect(address()).toBe("/topics?tab=two");
  await userEvent.click(screen.getByText("back"));
  await isChosen("One");
  expect(screen.getByText("filter x")).toBeTruthy();
  expect(address()).toBe("/topics?q=x");
});

test("an address of a section that is not there shows the first one", async () => {
  await renderView(<Page />, { path: "/topics", at: "/topics?tab=three" });
  await isChosen("One");
  expect(screen.queryByRole("tab", { name: "Three" })).toBeNull();
});

test("a refusal takes the place of the sections", async () => {
  const sections = [{ name: "one", label: "One", view: "content of one" }];
  await renderView(<Sections sections={sections} refusal={<p>not for you</p>} />);
  expect(screen.getByText("not for you")).toBeTruthy();
  expect(screen.queryByText("content of one")).toBeNull();
  expect(screen.queryByRole("tab", { selected: true })).toBeNull();
});
