// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { GroupsPage } from "./groups-page";

afterEach(() => vi.unstubAllGlobals());

const OPERATIONS = ["PUT /v1/groups/{group}"];
const NONE = { json: { items: [], next_cursor: null, metadata: "available" } };

async function openForm() {
  const view = await renderView(<GroupsPage />, { path: "/groups", operations: OPERATIONS, role: "operator" });
  fireEvent.click(await screen.findByRole("button", { name: "Create" }));
  const dialog = await screen.findByRole("dialog", { name: "Create a group" });
  const fill = (label: RegExp | string, value: string) => {
    fireEvent.change(within(dialog).getByLabelText(label), { target: { value } });
  };
  const button = () => within(dialog).getByRole<HTMLButtonElement>("button", { name: "Create" });
  return { view, dialog, fill, button };
}

test("a group is created with what differs from the defaults, and its page opens", async () => {
  const sent = stubGateway({ "GET /v1/groups": NONE, "PUT /v1/groups/{group}": { status: 201, json: {} } });
  const { view, dialog, fill, button } = await openForm();
  fill(/^Group/, "billing");
  fill("Retries", "3");
  fill("Retry policy", "soon");
  expect(button().disabled).toBe(true);
  expect(within(dialog).getByText(/Write levels/)).toBeTruthy();
  fill("Retry policy", "10s");
  fireEvent.click(within(dialog).getByLabelText("In order"));
  fireEvent.click(button());
  expect(await screen.findByText("The group billing is created.")).toBeTruthy();
  const put = sent.find((call) => call.method === "PUT");
  expect([put?.path, put?.headers.get("if-none-match"), put?.body]).toEqual([
    "/v1/groups/billing",
    "*",
    { orderly: true, retry_max_times: 3, retry_policy: { kind: "delays", delays_ms: [10_000] } },
  ]);
  expect(view.address()).toBe("/groups/billing");
});

test("an emptied number is no zero: the gateway refuses it, and its reason stands at the field", async () => {
  const problem = refused("invalid-field", 400, "/retry_max_times: expected an integer").json as object;
  const sent = stubGateway({
    "GET /v1/groups": NONE,
    "PUT /v1/groups/{group}": { status: 400, json: { ...problem, field: "/retry_max_times" } },
  });
  const { dialog, fill, button } = await openForm();
  fill(/^Group/, "billing");
  fill("Retries", "");
  fireEvent.click(button());
  expect(await within(dialog).findByText("/retry_max_times: expected an integer")).toBeTruthy();
  expect(within(dialog).getByLabelText("Retries").getAttribute("aria-invalid")).toBe("true");
  expect(sent.find((call) => call.method === "PUT")?.body).toEqual({ retry_max_times: "" });
});

test("a name that exists is said at the name", async () => {
  stubGateway({ "GET /v1/groups": NONE, "PUT /v1/groups/{group}": refused("version-conflict", 412) });
  const { dialog, fill, button } = await openForm();
  fill(/^Group/, "billing");
  fireEvent.click(button());
  expect(await within(dialog).findByText("There is already a group billing.")).toBeTruthy();
});

test("a viewer creates no group", async () => {
  stubGateway({ "GET /v1/groups": NONE });
  await renderView(<GroupsPage />, { path: "/groups", operations: OPERATIONS, role: "viewer" });
  expect(await screen.findByText("There is no consumer group yet.")).toBeTruthy();
  expect(screen.queryByRole("button", { name: "Create" })).toBeNull();
});
