// @vitest-environment jsdom
import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useState } from "react";
import { afterEach, expect, test, vi } from "vitest";
import { stubGateway } from "@/testing/gateway";
import { group, lagRow, report, page, offset, moved } from "@/testing/groups";
import { renderView } from "@/testing/render";
import { GroupPage } from "./group-page";

afterEach(() => vi.unstubAllGlobals());

const LAG = "GET /v1/reports/lag_report/rows";
const DETAIL = [
  LAG,
  "GET /v1/groups/{group}/offsets",
  "GET /v1/groups/{group}/subscriptions",
  "GET /v1/groups/{group}/consistency",
  "PUT /v1/groups/{group}",
  "DELETE /v1/groups/{group}",
  "POST /v1/groups/{group}/offsets:reset",
  "POST /v1/groups/{group}/offsets:clone",
  "POST /v1/groups/{group}/offsets:undo",
];
const PATH = { path: "/groups/$group", at: "/groups/billing" };

async function openReset() {
  await renderView(<GroupPage />, { ...PATH, operations: DETAIL });
  fireEvent.click(await screen.findByRole("button", { name: "Reset offsets" }));
  const dialog = await screen.findByRole("dialog", { name: "Reset the offsets of billing" });
  await within(dialog).findByDisplayValue("orders");
  fireEvent.change(within(dialog).getByRole("combobox", { name: "Go to" }), { target: { value: "earliest" } });
  return dialog;
}

test("a reset needs its preview, says what it did, and can be undone", async () => {
  const sent = stubGateway({
    "GET /v1/groups/{group}": { json: group("billing") },
    "GET /v1/groups/{group}/offsets": page([offset(0, "30")]),
    [LAG]: report([lagRow("billing")]),
    "POST /v1/groups/{group}/offsets:reset": (call) => ({
      json: (call.body as { dry_run: boolean }).dry_run ? moved("planned") : moved("reset", { undo: "token" }),
    }),
    "POST /v1/groups/{group}/offsets:undo": { json: moved("reset", { undo: "back" }) },
  });
  const dialog = await openReset();
  expect(within(dialog).queryByRole("button", { name: "Reset billing" })).toBeNull();
  fireEvent.click(within(dialog).getByRole("button", { name: "Preview" }));
  expect(await within(dialog).findByText("20 messages will be consumed again.")).toBeTruthy();
  expect(within(dialog).getByText("order-10")).toBeTruthy();
  expect(headers(dialog)).toEqual(["Now", "Then"]);
  fireEvent.click(within(dialog).getByRole("button", { name: "Reset billing" }));
  expect(await within(dialog).findByText("20 messages are consumed again.")).toBeTruthy();
  expect(headers(dialog)).toEqual(["Before", "After"]);
  fireEvent.click(within(dialog).getAllByRole("button", { name: "Close" }).at(-1) as HTMLElement);
  fireEvent.click(await screen.findByRole("button", { name: "Undo reset" }));
  expect(within(await screen.findByRole("dialog")).getByRole("button", { name: "Copy as" })).toBeTruthy();
  fireEvent.click(await screen.findByRole("button", { name: "Undo" }));
  expect(await screen.findByText("The offsets from before are back.")).toBeTruthy();
  expect(sent.filter((call) => call.method === "POST").map((call) => call.body)).toEqual([
    { topic: "orders", to: "earliest", dry_run: true },
    { topic: "orders", to: "earliest", dry_run: false },
    { undo: "token" },
  ]);
  // The undo of an undo brings the reset back: it has another name.
  expect(screen.queryByRole("button", { name: "Undo reset" })).toBeNull();
  fireEvent.click(await screen.findByRole("button", { name: "Redo reset" }));
  expect((await screen.findByRole("dialog")).textContent).toContain("billing goes to the offsets of the reset again.");
  fireEvent.click(await screen.findByRole("button", { name: "Redo" }));
  expect(await screen.findByText("The offsets of the reset are back.")).toBeTruthy();
  expect(await screen.findByRole("button", { name: "Undo reset" })).toBeTruthy();
  expect(sent.filter((call) => call.method === "POST").at(-1)?.body).toEqual({ undo: "back" });
});

/** The headers of the offsets before and after a move. */
function headers(dialog: HTMLElement): (string | null)[] {
  return within(dialog)
    .getAllByRole("columnheader")
    .slice(1, 3)
    .map((header) => header.textContent);
}

test("a reset can still be undone after the reader was on another page", async () => {
  stubGateway({
    "GET /v1/groups/{group}": { json: group("billing") },
    "GET /v1/groups/{group}/offsets": page([offset(0, "30")]),
    [LAG]: report([lagRow("billing")]),
    "POST /v1/groups/{group}/offsets:reset": (call) => ({
      json: (call.body as { dry_run: boolean }).dry_run ? moved("planned") : moved("reset", { undo: "token" }),
    }),
  });
  function Page() {
    const [isAway, setAway] = useState(false);
    const turn = (
      <button
        onClick={() => {
          setAway(!isAway);
        }}
      >
        turn
      </button>
    );
    return (
      <>
        {turn}
        {!isAway && <GroupPage />}
      </>
    );
  }
  await renderView(<Page />, { ...PATH, operations: DETAIL });
  fireEvent.click(await screen.findByRole("button", { name: "Reset offsets" }));
  const dialog = await screen.findByRole("dialog");
  await within(dialog).findByDisplayValue("orders");
  fireEvent.change(within(dialog).getByRole("combobox", { name: "Go to" }), { target: { value: "earliest" } });
  fireEvent.click(within(dialog).getByRole("button", { name: "Preview" }));
  fireEvent.click(await within(dialog).findByRole("button", { name: "Reset billing" }));
  await screen.findByRole("button", { name: "Undo reset" });
  const turn = screen.getByText("turn");
  fireEvent.click(turn);
  await waitFor(() => {
    expect(screen.queryByRole("button", { name: "Undo reset" })).toBeNull();
  });
  fireEvent.click(turn);
  expect(await screen.findByRole("button", { name: "Undo reset" })).toBeTruthy();
});

test("of a broker that does not answer nothing is known, and a preview moves nothing", async () => {
  const silent = {
    topic: "orders",
    broker: "broker-b",
    queue_id: 0,
    from: null,
    to: null,
    messages: null,
    first: null,
    last: null,
    note: null,
    outcome: "not_reset",
    problem: { detail: "broker broker-b does not answer" },
  };
  const skipped = { ...moved("planned").items[0], from: "10", to: "11", messages: "-1" };
  stubGateway({
    "GET /v1/groups/{group}": { json: group("billing") },
    "GET /v1/groups/{group}/offsets": page([offset(0, "30")]),
    [LAG]: report([]),
    "POST /v1/groups/{group}/offsets:reset": { json: moved("planned", { items: [skipped, silent] }) },
  });
  const dialog = await openReset();
  fireEvent.click(within(dialog).getByRole("button", { name: "Preview" }));
  expect(await within(dialog).findByText("1 queue can't move now.")).toBeTruthy();
  const cells = (row: number) =>
    within(within(dialog).getAllByRole("row")[row] as HTMLElement)
      .getAllByRole("cell")
      .slice(1, 6)
      .map((cell) => cell.textContent);
  expect(cells(1).slice(0, 3)).toEqual(["10", "11", "1 skipped"]);
  expect(cells(2)).toEqual(["unknown", "unknown", "unknown", "unknown", "unknown"]);
});

test("another place makes the preview void, and queues that did not move are counted", async () => {
  stubGateway({
    "GET /v1/groups/{group}": { json: group("billing") },
    "GET /v1/groups/{group}/offsets": page([offset(0, "30")]),
    [LAG]: report([]),
    "POST /v1/groups/{group}/offsets:reset": (call) => ({
      json: moved((call.body as { dry_run: boolean }).dry_run ? "planned" : "not_reset"),
    }),
  });
  const dialog = await openReset();
  const choose = (value: string) => {
    fireEvent.change(within(dialog).getByRole("combobox", { name: "Go to" }), { target: { value } });
  };
  fireEvent.click(within(dialog).getByRole("button", { name: "Preview" }));
  await within(dialog).findByRole("button", { name: "Reset billing" });
  choose("latest");
  expect(within(dialog).queryByRole("button", { name: "Reset billing" })).toBeNull();
  choose("time");
  expect(within(dialog).getByRole<HTMLButtonElement>("button", { name: "Preview" }).disabled).toBe(true);
  choose("latest");
  fireEvent.click(within(dialog).getByRole("button", { name: "Preview" }));
  fireEvent.click(await within(dialog).findByRole("button", { name: "Reset billing" }));
  expect(await within(dialog).findByText(/1 queue did not move/)).toBeTruthy();
});

test("after a reset by keyboard the focus is at its outcome, and nothing is left to discard", async () => {
  const user = userEvent.setup();
  stubGateway({
    "GET /v1/groups/{group}": { json: group("billing") },
    "GET /v1/groups/{group}/offsets": page([offset(0, "30")]),
    [LAG]: report([]),
    "POST /v1/groups/{group}/offsets:reset": (call) => ({
      json: (call.body as { dry_run: boolean }).dry_run ? moved("planned") : moved("reset"),
    }),
  });
  const dialog = await openReset();
  await user.selectOptions(within(dialog).getByRole("combobox", { name: "Go to" }), "latest");
  within(dialog).getByRole("button", { name: "Preview" }).focus();
  await user.keyboard("{Enter}");
  (await within(dialog).findByRole("button", { name: "Reset billing" })).focus();
  await user.keyboard("{Enter}");
  await within(dialog).findByText("20 messages are consumed again.");
  expect(document.activeElement?.textContent).toBe("20 messages are consumed again.");
  await user.keyboard("{Escape}");
  await waitFor(() => {
    expect(screen.queryByRole("dialog")).toBeNull();
  });
});
