// @vitest-environment jsdom
import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import { createMemoryHistory } from "@tanstack/react-router";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway, type FakeAnswer } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { AccessPage } from "./access-page";

afterEach(() => vi.unstubAllGlobals());

const OPERATIONS = [
  "GET /v1/users",
  "PUT /v1/users/{user}",
  "DELETE /v1/users/{user}",
  "GET /v1/users/{user}/sessions",
  "DELETE /v1/users/{user}/sessions",
  "DELETE /v1/users/{user}/sessions/{session}",
  "GET /v1/keys",
  "GET /v1/audit",
];
const AT = "2026-01-02T00:00:00.000Z";

const user = (name: string, more: object = {}) => ({
  user: name,
  role: "viewer",
  disabled: false,
  created_at: AT,
  password_changed_at: AT,
  log_in_waits: [],
  ...more,
});
const session = (id: string, more: object = {}) => ({
  session: id,
  created_at: AT,
  last_seen_at: AT,
  expires_at: "2100-01-01T00:00:00.000Z",
  address: "10.0.0.1",
  user_agent: "Mozilla/5.0 (X11; Linux x86_64; rv:142.0) Gecko/20100101 Firefox/142.0",
  current: false,
  ...more,
});
const page = (...items: object[]): FakeAnswer => ({ json: { items, next_cursor: null } });
const logIns = (next_cursor: string | null, ...names: string[]): FakeAnswer => ({
  json: { items: names.map((name) => ({ name, at: AT })), next_cursor },
});
const lastAdmin = refused("last-admin", 409, "user: ada is the last user with the role admin who can log in");

async function open(at: string, role: "viewer" | "operator" | "admin" = "admin", operations = OPERATIONS) {
  return renderView(<AccessPage />, { path: "/access", at, role, operations });
}

const button = (name: string, within_?: HTMLElement) =>
  (within_ === undefined ? screen : within(within_)).getByRole<HTMLButtonElement>("button", { name });

test("users come page by page, with their last log-in, and a search is part of the address", async () => {
  stubGateway({
    "GET /v1/users": (call) =>
      call.query.cursor === "c2"
        ? page(user("zoe"))
        : { json: { items: [user("ada", { role: "admin" }), user("grace", { disabled: true })], next_cursor: "c2" } },
    "GET /v1/audit": logIns(null, "ada"),
  });
  const view = await open("/access");
  expect(await screen.findByText("3 users")).toBeTruthy();
  const rows = within(screen.getByRole("table", { name: "Users" }))
    .getAllByRole("row")
    .slice(1);
  expect(rows[0]?.textContent).toMatch(/ada.*you.*Admin.*can log in.* ago/);
  expect(rows[1]?.textContent).toMatch(/grace.*Viewer.*disabled.*none on record/);
  await userEvent.type(screen.getByRole("textbox", { name: "Search users" }), "gra");
  expect(await screen.findByText("1 user")).toBeTruthy();
  await waitFor(() => {
    expect(view.address()).toBe("/access?q=gra");
  });
});

test("an admin sees who has to wait after failed log-ins, from where and until when", async () => {
  const until = new Date(Date.now() + 150_000).toISOString();
  const over = new Date(Date.now() - 1_000).toISOString();
  const waits = [
    { address: "10.0.0.9", failures: 12, until },
    { address: null, failures: 60, until },
    { address: "10.0.0.8", failures: 5, until: over },
  ];
  const ended = [{ address: "10.0.0.8", failures: 5, until: over }];
  stubGateway({ "GET /v1/users": page(user("grace", { log_in_waits: waits }), user("zoe", { log_in_waits: ended })) });
  await open("/access?user=grace", "admin", ["GET /v1/users"]);
  const details = await screen.findByRole("dialog", { name: "grace" });
  expect(within(details).getByText(/^10\.0\.0\.9/).parentElement?.textContent).toMatch(
    /^10\.0\.0\.9: 12 failed, the next may come in 2 min \d+ s$/,
  );
  expect(within(details).getByText(/^from anywhere: 60 failed/)).toBeTruthy();
  expect(within(details).queryByText(/10\.0\.0\.8/)).toBeNull();
  const states = within(screen.getByRole("table", { name: "Users", hidden: true }))
    .getAllByText(/has to wait|can log in/)
    .map((each) => each.textContent);
  expect(states).toEqual(["has to wait", "can log in"]);
});

test("a log-in that is older than the entries that were read is unknown", async () => {
  stubGateway({ "GET /v1/users": page(user("grace")), "GET /v1/audit": logIns("more", "ada") });
  await open("/access");
  const row = (await screen.findByText("grace")).closest<HTMLElement>("[role=row]");
  await waitFor(() => {
    expect(row?.textContent).toContain("unknown");
  });
});

test("without an audit trail there is no column of log-ins", async () => {
  stubGateway({ "GET /v1/users": page(user("grace")) });
  await open("/access", "admin", ["GET /v1/users"]);
  expect(await screen.findByText("grace")).toBeTruthy();
  expect(screen.queryByRole("columnheader", { name: /Last log-in/ })).toBeNull();
  expect(screen.queryByRole("button", { name: "Create user" })).toBeNull();
});

test("a user is created only if the name is free; the gateway's reasons stand at their fields", async () => {
  const answers = [
    refused("version-conflict", 412),
    {
      status: 400,
      json: { ...(refused("invalid-field", 400, "password: is too short").json as object), field: "/password" },
    },
    { status: 201, json: user("bob", { role: "operator" }) },
  ];
  const sent = stubGateway({
    "GET /v1/users": page(user("ada")),
    "GET /v1/audit": logIns(null),
    "PUT /v1/users/{user}": () => answers.shift() ?? {},
  });
  await open("/access");
  fireEvent.click(await screen.findByRole("button", { name: "Create user" }));
  const dialog = await screen.findByRole("dialog", { name: "Create a user" });
  fireEvent.change(within(dialog).getByLabelText(/^User/), { target: { value: "bob" } });
  fireEvent.change(within(dialog).getByLabelText("Role"), { target: { value: "operator" } });
  fireEvent.change(within(dialog).getByLabelText(/^Password/), { target: { value: "secret" } });
  fireEvent.click(button("Create", dialog));
  expect(await within(dialog).findByText("There is already a user bob.")).toBeTruthy();
  fireEvent.click(button("Create", dialog));
  expect(await within(dialog).findByText("password: is too short")).toBeTruthy();
  fireEvent.click(button("Create", dialog));
  expect(await screen.findByText("The user bob is created.")).toBeTruthy();
  const put = sent.filter((call) => call.method === "PUT").at(-1);
  expect([put?.path, put?.body, put?.headers.get("if-none-match")]).toEqual([
    "/v1/users/bob",
    { role: "operator", password: "secret" },
    "*",
  ]);
});

test("commands to copy never have the password", async () => {
  stubGateway({ "GET /v1/users": page(user("ada")), "GET /v1/audit": logIns(null) });
  const hands = userEvent.setup();
  await open("/access");
  fireEvent.click(await screen.findByRole("button", { name: "Create user" }));
  const dialog = await screen.findByRole("dialog", { name: "Create a user" });
  fireEvent.change(within(dialog).getByLabelText(/^User/), { target: { value: "bob" } });
  fireEvent.change(within(dialog).getByLabelText(/^Password/), { target: { value: "hunter-two-2" } });
  const copied: string[] = [];
  for (const kind of ["curl command", "gantry command"]) {
    await hands.click(button("Copy as", dialog));
    await hands.click(await screen.findByRole("menuitem", { name: kind }));
    copied.push(await navigator.clipboard.readText());
  }
  expect(copied.join()).not.toContain("hunter");
  expect(copied[0]).toContain("getpass");
  expect(copied[1]).toBe("gantry user create bob --role viewer");
});

test("the last admin can't be demoted, and the page says what helps", async () => {
  const sent = stubGateway({
    "GET /v1/users": page(user("ada", { role: "admin" })),
    "GET /v1/audit": logIns(null),
    "GET /v1/users/{user}/sessions": page(),
    "PUT /v1/users/{user}": lastAdmin,
  });
  await open("/access?user=ada");
  const drawer = await screen.findByRole("dialog", { name: "ada" });
  fireEvent.change(within(drawer).getByLabelText("Role"), { target: { value: "viewer" } });
  fireEvent.click(button("Change role", drawer));
  const question = await screen.findByRole("dialog", { name: "Change the role of ada" });
  expect(within(question).getByText("ada becomes Viewer and is no longer Admin.")).toBeTruthy();
  expect(within(question).getByText("You are logged out everywhere, also here.")).toBeTruthy();
  fireEvent.click(button("Change role", question));
  expect(await within(drawer).findByText(/ada is the last user with the role admin/)).toBeTruthy();
  expect(within(drawer).getByText(/Give another user the role Admin first/)).toBeTruthy();
  const put = sent.find((call) => call.method === "PUT");
  expect([put?.body, put?.headers.get("if-match")]).toEqual([{ role: "viewer" }, "*"]);
});

test("a user is disabled after a question, deleted after typing the name, and gets another password", async () => {
  const sent = stubGateway({
    "GET /v1/users": page(user("bob")),
    "GET /v1/audit": logIns(null),
    "GET /v1/users/{user}/sessions": page(),
    "PUT /v1/users/{user}": { json: user("bob") },
    "DELETE /v1/users/{user}": { status: 204 },
  });
  const view = await open("/access?user=bob");
  const drawer = await screen.findByRole("dialog", { name: "bob" });
  fireEvent.click(button("Disable", drawer));
  fireEvent.click(button("Disable", await screen.findByRole("dialog", { name: "Disable bob" })));
  expect(await screen.findByText("bob is disabled.")).toBeTruthy();

  fireEvent.click(button("Reset password", drawer));
  const reset = await screen.findByRole("dialog", { name: "Reset the password of bob" });
  fireEvent.change(within(reset).getByLabelText(/^New password/), { target: { value: "correct horse" } });
  fireEvent.click(button("Reset password", reset));
  expect(await screen.findByText("The password of bob is changed.")).toBeTruthy();

  fireEvent.click(button("Delete", drawer));
  const question = await screen.findByRole("dialog", { name: "Delete bob" });
  expect(button("Delete", question).disabled).toBe(true);
  fireEvent.change(within(question).getByLabelText("Type bob to confirm"), { target: { value: "bob" } });
  fireEvent.click(button("Delete", question));
  expect(await screen.findByText("The user bob is deleted.")).toBeTruthy();
  await waitFor(() => {
    expect(view.address()).toBe("/access");
  });
  const changes = sent.filter((call) => call.method !== "GET").map((call) => [call.method, call.body]);
  expect(changes).toEqual([
    ["PUT", { disabled: true }],
    ["PUT", { password: "correct horse" }],
    ["DELETE", undefined],
  ]);
});

test("a user of the address who does not exist is said", async () => {
  stubGateway({ "GET /v1/users": page(user("ada")), "GET /v1/audit": logIns(null) });
  await open("/access?user=nobody");
  expect(await screen.findByText("There is no user nobody.")).toBeTruthy();
});

test.each(["viewer", "operator"] as const)("for a %s there are no tabs of users and keys", async (role) => {
  const sent = stubGateway({
    "GET /v1/users/{user}/sessions": page(session("s1", { current: true }), session("s2", { user_agent: null })),
  });
  const view = await open("/access", role);
  const table = await screen.findByRole("table", { name: "Sessions of ada" });
  const rows = within(table).getAllByRole("row").slice(1);
  expect(rows[0]?.textContent).toMatch(/Firefox 142, Linux.*this session.*10\.0\.0\.1/);
  expect(rows[1]?.textContent).toMatch(/^unknown/);
  expect(screen.queryByLabelText("User")).toBeNull();
  expect(screen.getAllByRole("tab").map((tab) => tab.textContent)).toEqual(["Sessions", "Roles"]);
  view.unmount();
  for (const tab of ["users", "keys"]) {
    const reached = await open(`/access?tab=${tab}`, role);
    expect((await screen.findByRole("alert")).textContent).toMatch(/This needs the role Admin. Yours is \w+/);
    reached.unmount();
  }
  expect(new Set(sent.map((call) => call.path))).toEqual(new Set(["/v1/users/ada/sessions"]));
});

test("the address and the sessions follow the name of a user when the typing pauses, without new steps back", async () => {
  const sent = stubGateway({
    "GET /v1/users": page(user("bob")),
    "GET /v1/users/{user}/sessions": page(session("s1")),
  });
  const history = createMemoryHistory({ initialEntries: ["/access?tab=sessions"] });
  const addresses: string[] = [];
  history.subscribe(({ location }) => addresses.push(location.href));
  await renderView(<AccessPage />, { path: "/access", role: "admin", operations: OPERATIONS, history });
  const field = await screen.findByPlaceholderText<HTMLInputElement>("ada");
  expect(field.value).toBe("");
  expect(await screen.findByRole("table", { name: "Sessions of ada" })).toBeTruthy();
  await userEvent.type(field, "zoe");
  expect(await screen.findByRole("table", { name: "Sessions of zoe" })).toBeTruthy();
  // An empty field stands for the own sessions, and stays empty.
  await userEvent.clear(field);
  expect(await screen.findByRole("table", { name: "Sessions of ada" })).toBeTruthy();
  expect(field.value).toBe("");
  await userEvent.type(field, "b");
  await userEvent.click(await screen.findByRole("option", { name: "bob" }));
  expect(await screen.findByRole("table", { name: "Sessions of bob" })).toBeTruthy();
  expect(addresses).toEqual(["zoe", "", "bob"].map((name) => `/access?tab=sessions${name && `&user=${name}`}`));
  expect(history.length).toBe(1);
  expect(sent.map((call) => call.path).filter((path) => path.endsWith("/sessions"))).toEqual(
    ["ada", "zoe", "bob"].map((name) => `/v1/users/${name}/sessions`),
  );
});

test("one session ends, and all of them end, after a question that says whose", async () => {
  const sent = stubGateway({
    "GET /v1/users": page(user("bob")),
    "GET /v1/users/{user}/sessions": page(session("s1"), session("s2")),
    "DELETE /v1/users/{user}/sessions/{session}": { status: 204 },
    "DELETE /v1/users/{user}/sessions": { status: 204 },
  });
  await open("/access?tab=sessions&user=bob");
  fireEvent.click(await screen.findByRole("button", { name: "End session s2" }));
  const one = await screen.findByRole("dialog", { name: "End this session" });
  expect(within(one).getByText("The session of bob ends (Firefox 142, Linux).")).toBeTruthy();
  fireEvent.click(button("End session", one));
  expect(await screen.findByText("The session has ended.")).toBeTruthy();
  fireEvent.click(button("End all sessions"));
  const all = await screen.findByRole("dialog", { name: "End all sessions of bob" });
  expect(within(all).getByText("bob is logged out of 2 sessions.")).toBeTruthy();
  fireEvent.click(button("End all sessions", all));
  expect(await screen.findByText("The sessions of bob have ended.")).toBeTruthy();
  expect(sent.filter((call) => call.method === "DELETE").map((call) => call.path)).toEqual([
    "/v1/users/bob/sessions/s2",
    "/v1/users/bob/sessions",
  ]);
});

test("roles are explained, with the own one", async () => {
  stubGateway({});
  await open("/access?tab=roles", "operator");
  expect(await screen.findByText("Your role is Operator.")).toBeTruthy();
  const table = screen.getByRole("table", { name: "Roles of users" });
  const row = within(table).getByRole("row", { name: /Reset and take over offsets/ });
  const cells = within(row).getAllByRole("cell");
  expect(cells.map((cell) => within(cell).queryByRole("img", { name: "yes" }) !== null)).toEqual([false, true, true]);
});
