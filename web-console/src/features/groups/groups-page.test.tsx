// @vitest-environment jsdom
import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { group, lagRow, report, page, offset } from "@/testing/groups";
import { renderView } from "@/testing/render";
import { GroupPage } from "./group-page";
import { GroupsPage } from "./groups-page";

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

test("the worst groups come first, and a group that is not in the report has unknown lag", async () => {
  stubGateway({
    "GET /v1/groups": (call) =>
      call.query.cursor === "c2"
        ? page([group("new", { consume: false })])
        : page([group("audit"), group("billing")], "c2"),
    [LAG]: report([lagRow("billing"), lagRow("audit", { verdict: "OK", lag_messages: 0, lag_seconds: 0, in_rate: 1 })]),
  });
  const { address } = await renderView(<GroupsPage />, { path: "/groups", operations: [LAG] });
  expect(await screen.findByText("3 groups")).toBeTruthy();
  const table = screen.getByRole("table", { name: "Groups" });
  await waitFor(() => {
    expect(
      within(table)
        .getAllByRole("link")
        .map((link) => link.textContent),
    ).toEqual(["billing", "audit", "new"]);
  });
  const rows = within(table).getAllByRole("row").slice(1);
  expect(rows[0]?.textContent).toContain("STALLED1,2001 min 30 s grows by 3/s2applied");
  expect(rows[1]?.textContent).toContain("OK00 s steady2applied");
  expect(rows[2]?.textContent).toContain("newunknownunknownunknownunknownunknownappliedpaused");
  await userEvent.type(screen.getByRole("textbox", { name: "Search groups" }), "AUD");
  expect(await screen.findByText("1 of 3 groups")).toBeTruthy();
  await waitFor(() => {
    expect(address()).toBe("/groups?q=AUD");
  });
});

test("without reports the list has no columns of lag", async () => {
  stubGateway({ "GET /v1/groups": page([group("billing")]) });
  await renderView(<GroupsPage />, { path: "/groups", operations: [] });
  expect(await screen.findByText("1 group")).toBeTruthy();
  expect(screen.queryByRole("columnheader", { name: /Lag/ })).toBeNull();
});

test("the summary says why a group is late, what to do, and that no end is certain", async () => {
  stubGateway({ "GET /v1/groups/{group}": { json: group("billing") }, [LAG]: report([lagRow("billing")]) });
  await renderView(<GroupPage />, { ...PATH, operations: DETAIL });
  const card = await screen.findByRole("region", { name: "orders" });
  for (const text of [
    /commit nothing/,
    /Look at the logs/,
    "10 min",
    "at least 5 min; no end is certain",
    "grows by 3/s",
  ])
    expect(within(card).getByText(text)).toBeTruthy();
});

test("a group without a report says so, and shows no zero", async () => {
  stubGateway({
    "GET /v1/groups/{group}": { json: group("billing") },
    [LAG]: refused("unknown-run", 404),
  });
  await renderView(<GroupPage />, { ...PATH, operations: DETAIL });
  expect(await screen.findByText(/There is no lag report yet/)).toBeTruthy();
});

test("queues have exact offsets; owners come from the report, and unknown ones are unknown", async () => {
  const owners = [{ client_id: "worker-1", host: "10.0.0.1", queues: 1 }];
  stubGateway({
    "GET /v1/groups/{group}": { json: group("billing") },
    "GET /v1/groups/{group}/offsets": page([offset(0, "9007199254740993"), offset(1, null)]),
    [LAG]: report([lagRow("billing", { level: "queue", broker: "broker-a", queue_id: 0, owners })]),
  });
  await renderView(<GroupPage />, { ...PATH, at: "/groups/billing?tab=offsets", operations: DETAIL });
  const table = await screen.findByRole("table", { name: "Queues" });
  await within(table).findByText("worker-1");
  const rows = within(table).getAllByRole("row").slice(1);
  expect(rows[0]?.textContent).toContain("9,007,199,254,740,9939,007,199,254,740,9952");
  expect(rows[1]?.textContent).toBe("broker-a / 1ordersunknown9,007,199,254,740,995unknownunknownunknown");
});

test("members that differ are named with what each side has", async () => {
  const side = (value: string, clients: string[], clients_count = clients.length) => ({
    value,
    clients,
    clients_count,
    since: "2026-01-01T00:00:00.000Z",
  });
  stubGateway({
    "GET /v1/groups/{group}": { json: group("billing") },
    "GET /v1/groups/{group}/subscriptions": page([]),
    "GET /v1/groups/{group}/consistency": {
      json: {
        consistent: false,
        since: null,
        differences: [{ kind: "filters", topic: "orders", sides: [side("eu", ["a"]), side("us", ["b"], 4)] }],
        missing: [],
      },
    },
  });
  await renderView(<GroupPage />, { ...PATH, at: "/groups/billing?tab=subscriptions", operations: DETAIL });
  expect(await screen.findByText("Members differ: some messages may reach nobody")).toBeTruthy();
  const sides = screen.getAllByRole("listitem").map((item) => item.textContent);
  expect(sides).toEqual(["eu: a", "us: b +3"]);
});

/** Copies the gantry command of the question that is open, and closes the question. */
async function copyCommand(user: ReturnType<typeof userEvent.setup>): Promise<string> {
  const dialog = await screen.findByRole("dialog");
  await user.click(within(dialog).getByRole("button", { name: "Copy as" }));
  await user.click(await screen.findByRole("menuitem", { name: "gantry command" }));
  await user.click(within(dialog).getByRole("button", { name: "Cancel" }));
  return navigator.clipboard.readText();
}

test("pausing, resuming and deleting a group can be copied where they are confirmed", async () => {
  const user = userEvent.setup();
  let consume = true;
  stubGateway({
    "GET /v1/groups/{group}": () => ({ json: group("billing", { consume }), headers: { etag: '"3"' } }),
    [LAG]: report([]),
  });
  const view = await renderView(<GroupPage />, { ...PATH, operations: DETAIL });
  await user.click(await screen.findByRole("button", { name: "Pause" }));
  expect(await copyCommand(user)).toBe("gantry group create billing --no-consume");
  await user.click(screen.getByRole("button", { name: "More" }));
  await user.click(await screen.findByRole("menuitem", { name: "Delete" }));
  expect(await copyCommand(user)).toBe("gantry group delete billing --yes");
  view.unmount();
  consume = false;
  await renderView(<GroupPage />, { ...PATH, operations: DETAIL });
  await user.click(await screen.findByRole("button", { name: "Resume" }));
  expect(await copyCommand(user)).toBe("gantry group create billing --consume");
});

test("a group is paused for the version that was read, after a question", async () => {
  const sent = stubGateway({
    "GET /v1/groups/{group}": { json: group("billing"), headers: { etag: '"3"' } },
    [LAG]: report([]),
    "PUT /v1/groups/{group}": { json: group("billing", { consume: false }) },
  });
  await renderView(<GroupPage />, { ...PATH, operations: DETAIL });
  fireEvent.click(await screen.findByRole("button", { name: "Pause" }));
  const dialog = await screen.findByRole("dialog", { name: "Pause billing?" });
  fireEvent.click(within(dialog).getByRole("button", { name: "Pause" }));
  expect(await screen.findByText("billing is paused.")).toBeTruthy();
  const put = sent.find((call) => call.method === "PUT");
  expect([put?.body, put?.headers.get("if-match")]).toEqual([{ consume: false }, '"3"']);
});

test("a retry policy that is none can't be saved; one that is, is sent as the contract has it", async () => {
  const sent = stubGateway({
    "GET /v1/groups/{group}": { json: group("billing"), headers: { etag: '"3"' } },
    "PUT /v1/groups/{group}": { json: group("billing") },
  });
  await renderView(<GroupPage />, { ...PATH, at: "/groups/billing?tab=settings", operations: DETAIL });
  const field = await screen.findByRole("textbox", { name: "Retry policy" });
  const save = () => screen.getByRole<HTMLButtonElement>("button", { name: "Save" });
  fireEvent.change(field, { target: { value: "soon" } });
  expect(screen.getByText(/Write levels/)).toBeTruthy();
  expect(save().disabled).toBe(true);
  fireEvent.change(field, { target: { value: "10s,1m" } });
  fireEvent.click(save());
  const dialog = await screen.findByRole("dialog", { name: "Change billing" });
  fireEvent.click(within(dialog).getByRole("button", { name: "Save" }));
  expect(await screen.findByText("The settings are saved.")).toBeTruthy();
  expect(sent.find((call) => call.method === "PUT")?.body).toEqual({
    retry_policy: { kind: "delays", delays_ms: [10_000, 60_000] },
  });
});

test("a viewer changes nothing, and what the gateway lacks is absent", async () => {
  stubGateway({ "GET /v1/groups/{group}": { json: group("billing") }, [LAG]: report([]) });
  await renderView(<GroupPage />, { ...PATH, operations: DETAIL, role: "viewer" });
  expect(await screen.findByRole("tab", { name: "Summary" })).toBeTruthy();
  for (const name of ["Pause", "Reset offsets", "More"]) expect(screen.queryByRole("button", { name })).toBeNull();
  expect(screen.queryByRole("tab", { name: "Clients" })).toBeNull();
});
