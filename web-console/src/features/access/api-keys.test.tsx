// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { AccessPage } from "./access-page";

afterEach(() => vi.unstubAllGlobals());

const OPERATIONS = [
  "GET /v1/keys",
  "POST /v1/keys",
  "PUT /v1/keys/{id}",
  "DELETE /v1/keys/{id}",
  "POST /v1/keys/{id}:rotate",
];
const SECRET = "gk_0123456789abcdef";

const key = (id: string, more: object = {}) => ({
  id,
  name: `name of ${id}`,
  rights: { publish: ["orders"], consume: { topics: ["orders*"], groups: ["billing"] }, admin: false, metrics: false },
  limits: { messages_per_s: null, bytes_per_s: null, connections: null, in_flight: 50 },
  created_at: "2026-01-02T00:00:00.000Z",
  expires_at: null,
  rotated_at: null,
  previous_valid_until: null,
  revoked_at: null,
  last_used_at: null,
  ...more,
});
const page = (...items: object[]) => ({ json: { items, next_cursor: null } });
const open = (at = "/access?tab=keys") => renderView(<AccessPage />, { path: "/access", at, operations: OPERATIONS });
const button = (name: string, within_: HTMLElement) => within(within_).getByRole<HTMLButtonElement>("button", { name });

test("keys have their rights in words, their state and their last use", async () => {
  const sent = stubGateway({
    "GET /v1/keys": page(
      key("k1"),
      key("k2", { rights: { admin: true }, last_used_at: "2026-01-03T00:00:00.000Z" }),
      key("k3", { expires_at: "2026-01-03T00:00:00.000Z", rights: {} }),
      key("k4", { revoked_at: "2026-01-03T00:00:00.000Z" }),
    ),
  });
  await open("/access?tab=keys&revoked=yes");
  const rows = within(await screen.findByRole("table", { name: "API keys" }))
    .getAllByRole("row")
    .slice(1);
  expect(rows[0]?.textContent).toContain("sends to orders · reads orders* · consumes as billingvalidnot yetnever");
  expect(rows[1]?.textContent).toMatch(/everythingvalid.* ago/);
  expect(rows[2]?.textContent).toMatch(/noneexpired/);
  expect(rows[3]?.textContent).toContain("revoked");
  expect(sent[0]?.query.revoked).toBe("true");
});

test("a new key's secret is shown once, and nothing of it stays", async () => {
  const hands = userEvent.setup();
  const sent = stubGateway({
    "GET /v1/keys": page(key("k1")),
    "POST /v1/keys": { status: 201, json: { ...key("k2", { name: "pricing" }), key: SECRET } },
  });
  await open();
  fireEvent.click(await screen.findByRole("button", { name: "Create key" }));
  const dialog = await screen.findByRole("dialog", { name: "Create an API key" });
  fireEvent.change(within(dialog).getByLabelText(/^Name/), { target: { value: "pricing" } });
  expect(button("Create", dialog).disabled).toBe(true);
  fireEvent.change(within(dialog).getByLabelText("Sends to topics"), { target: { value: "orders, pay*" } });
  fireEvent.change(within(dialog).getByLabelText("Requests at a time"), { target: { value: "50" } });
  fireEvent.click(button("Create", dialog));
  const shown = await screen.findByRole("dialog", { name: "The secret of pricing" });
  expect(within(shown).getByText(SECRET)).toBeTruthy();
  await hands.click(button("Copy", shown));
  expect(await navigator.clipboard.readText()).toBe(SECRET);
  await hands.keyboard("{Escape}");
  expect(screen.getByText(SECRET)).toBeTruthy();
  fireEvent.click(button("I have stored it", shown));
  await vi.waitFor(() => {
    expect(screen.queryByText(SECRET)).toBeNull();
  });
  expect(sent.find((call) => call.method === "POST")?.body).toEqual({
    name: "pricing",
    rights: { publish: ["orders", "pay*"], consume: { topics: [], groups: [] }, admin: false, metrics: false },
    limits: { in_flight: 50 },
  });
});

test("the gateway's reason stands at its field", async () => {
  const problem = refused("invalid-field", 400, "/expires_at: is not in the future").json as object;
  stubGateway({
    "GET /v1/keys": page(key("k1")),
    "POST /v1/keys": { status: 400, json: { ...problem, field: "/expires_at" } },
  });
  await open();
  fireEvent.click(await screen.findByRole("button", { name: "Create key" }));
  const dialog = await screen.findByRole("dialog", { name: "Create an API key" });
  fireEvent.change(within(dialog).getByLabelText(/^Name/), { target: { value: "pricing" } });
  fireEvent.click(within(dialog).getByLabelText("Admin"));
  fireEvent.change(within(dialog).getByLabelText("Expires"), { target: { value: "2020-01-01T00:00" } });
  fireEvent.click(button("Create", dialog));
  expect(await within(dialog).findByText("/expires_at: is not in the future")).toBeTruthy();
  expect(within(dialog).getByLabelText("Expires").getAttribute("aria-invalid")).toBe("true");
});

test("a key changes its limits, gets another secret, and is revoked", async () => {
  const sent = stubGateway({
    "GET /v1/keys": page(key("k1", { name: "pricing" })),
    "PUT /v1/keys/{id}": { json: key("k1") },
    "POST /v1/keys/{id}:rotate": {
      json: { ...key("k1", { name: "pricing", previous_valid_until: "2026-01-03T00:00:00.000Z" }), key: SECRET },
    },
    "DELETE /v1/keys/{id}": refused("last-admin-key", 409, "key k1 is the last one with the right admin"),
  });
  await open("/access?tab=keys&key=k1");
  const drawer = await screen.findByRole("dialog", { name: "pricing" });
  fireEvent.click(button("Change", drawer));
  const change = await screen.findByRole("dialog", { name: "Change pricing" });
  expect(button("Save", change).disabled).toBe(true);
  fireEvent.change(within(change).getByLabelText("Messages a second"), { target: { value: "500" } });
  fireEvent.click(button("Save", change));
  await vi.waitFor(() => {
    expect(screen.queryByRole("dialog", { name: "Change pricing" })).toBeNull();
  });

  fireEvent.click(button("New secret", drawer));
  fireEvent.click(button("Make new secret", await screen.findByRole("dialog", { name: "Give pricing a new secret" })));
  const shown = await screen.findByRole("dialog", { name: "The secret of pricing" });
  expect(within(shown).getByText(/The earlier secret is valid until/)).toBeTruthy();
  fireEvent.click(button("I have stored it", shown));

  fireEvent.click(button("Revoke", drawer));
  const question = await screen.findByRole("dialog", { name: "Revoke pricing" });
  fireEvent.change(within(question).getByLabelText("Type pricing to confirm"), { target: { value: "pricing" } });
  fireEvent.click(button("Revoke", question));
  expect(await within(drawer).findByText(/Create another key with the right admin/)).toBeTruthy();
  expect(sent.filter((call) => call.method !== "GET").map((call) => [call.method, call.path, call.body])).toEqual([
    ["PUT", "/v1/keys/k1", { limits: { messages_per_s: 500, in_flight: 50 } }],
    ["POST", "/v1/keys/k1:rotate", { overlap: "24h" }],
    ["DELETE", "/v1/keys/k1", undefined],
  ]);
});
