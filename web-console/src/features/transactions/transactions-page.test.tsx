// @vitest-environment jsdom
import { waitFor, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway, type FakeAnswer } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { TransactionsPage } from "./transactions-page";

afterEach(() => vi.unstubAllGlobals());

const LIST = "GET /v1/transactions";
const ONE = "GET /v1/transactions/{transaction}";
const COMMIT = "POST /v1/transactions/{transaction}:commit";
const ROLLBACK = "POST /v1/transactions/{transaction}:rollback";
const CHECK = "POST /v1/transactions/{transaction}:check";
const AUDIT = "GET /v1/audit";
const OPERATIONS = [LIST, ONE, COMMIT, ROLLBACK, CHECK, AUDIT];
const OPEN = { at: "/?transaction=T1", path: "/" };
const HOUR_MS = 3_600_000;

const ahead = (hours: number) => new Date(Date.now() + hours * HOUR_MS + 30_000).toISOString();

const transaction = (id: string, change: object = {}) => ({
  transaction: id,
  group: "ORDERS_TX",
  topic: "orders",
  message_id: id,
  state: "open",
  origin: "http",
  broker: "broker-a",
  created_at: "2026-01-01T00:00:00.000Z",
  decided_at: null,
  delivered_at: null,
  checks: 0,
  next_check_at: ahead(2),
  error: null,
  ...change,
});
const decided = { state: "committed", next_check_at: null, decided_at: "2026-01-01T00:01:00.000Z" };

const listOf = (...items: object[]): FakeAnswer => ({ json: { items, next_cursor: null } });
const drawer = async () => within(await screen.findByRole("dialog", { name: "Transaction" }));
const rowTexts = async () =>
  within(await screen.findByRole("table", { name: "Transactions" }))
    .getAllByRole("row")
    .slice(1)
    .map((row) => row.textContent);

test("transactions show their state, and an unknown time of the next check as unknown", async () => {
  stubGateway({
    [LIST]: listOf(
      transaction("T1"),
      transaction("T2", { checks: 3 }),
      transaction("T3", { next_check_at: null }),
      transaction("T4", { ...decided, decided_at: null }),
    ),
  });
  await renderView(<TransactionsPage />, { operations: OPERATIONS });
  const rows = await rowTexts();
  expect(rows[0]).toMatch(/T1openORDERS_TXorders.*ago0in 2 h.*–$/);
  expect(rows[1]).toMatch(/T2overdue.*ago3/);
  expect(rows[2]).toMatch(/T3open.*ago0unknown–$/);
  // A client decided it at its broker.
  expect(rows[3]).toMatch(/T4committed.*ago0–unknown$/);
});

test("filters are part of the address and of the request; overdue ones are asked for as open", async () => {
  const sent = stubGateway({ [LIST]: listOf(transaction("T1"), transaction("T2", { checks: 1 })) });
  const view = await renderView(<TransactionsPage />, { operations: OPERATIONS });
  await screen.findByRole("table", { name: "Transactions" });
  await userEvent.selectOptions(screen.getByLabelText("State"), "overdue");
  await userEvent.type(screen.getByLabelText("Producer group"), "ORDERS_TX");
  await vi.waitFor(() => {
    expect(sent.at(-1)?.query).toEqual({ state: "open", group: "ORDERS_TX", limit: "100" });
  });
  await waitFor(() => {
    expect(view.address()).toBe("/?state=overdue&group=ORDERS_TX");
  });
  expect((await rowTexts()).map((text) => text?.slice(0, 2))).toEqual(["T2"]);
});

test("a page without overdue ones is not taken for the end", async () => {
  stubGateway({
    [LIST]: (call) =>
      call.query["cursor"] === "2"
        ? listOf(transaction("T9", { checks: 1 }))
        : { json: { items: [transaction("T1")], next_cursor: "2" } },
  });
  await renderView(<TransactionsPage />, { at: "/?state=overdue", path: "/", operations: OPERATIONS });
  expect(await screen.findByText(/Older ones may/)).toBeTruthy();
  await userEvent.click(screen.getByRole("button", { name: "Show older transactions" }));
  expect(await screen.findByRole("button", { name: "T9" })).toBeTruthy();
});

test("a transaction opens by its address, and is committed after a question", async () => {
  let state = transaction("T1", { next_check_at: ahead(1) });
  const sent = stubGateway({
    [LIST]: listOf(),
    [ONE]: () => ({ json: state }),
    [COMMIT]: () => {
      state = transaction("T1", { ...decided, delivered_at: "2026-01-01T00:01:01.000Z" });
      return { json: { transaction: "T1", state: "committed", delivered: true } };
    },
    [AUDIT]: listOf({ action: "transaction.commit", actor: "user:ada" }),
  });
  await renderView(<TransactionsPage />, { ...OPEN, operations: OPERATIONS });
  const found = await drawer();
  expect((await found.findByText("Nobody is asked until")).parentElement?.textContent).toMatch(/in 1 h/);
  await userEvent.click(found.getByRole("button", { name: "Commit" }));
  const question = await screen.findByRole("dialog", { name: "Commit this transaction?" });
  expect(question.textContent).toMatch(/Message T1 is delivered to every group that consumes topic orders/);
  await userEvent.click(within(question).getByRole("button", { name: "Commit" }));
  expect(await screen.findByText(/The broker has the decision/)).toBeTruthy();
  expect((await found.findByText("user:ada")).textContent).toBe("user:ada");
  expect(found.queryByRole("button", { name: "Commit" })).toBeNull();
  expect(sent.filter((call) => call.method === "POST").map((call) => call.path)).toEqual([
    "/v1/transactions/T1:commit",
  ]);
});

test.each([
  [{ state: "rolled_back", delivered: true }, "Rolled back. The message will never be delivered."],
  [{ state: "rolled_back", delivered: false }, /a gateway brings it as soon as it can/],
])("a rollback says whether the broker has it: %j", async (answer, text) => {
  stubGateway({ [LIST]: listOf(), [ONE]: { json: transaction("T1") }, [ROLLBACK]: { json: answer } });
  await renderView(<TransactionsPage />, { ...OPEN, operations: OPERATIONS });
  await userEvent.click(await (await drawer()).findByRole("button", { name: "Roll back" }));
  const question = await screen.findByRole("dialog", { name: "Roll back this transaction?" });
  await userEvent.click(within(question).getByRole("button", { name: "Roll back" }));
  expect(await screen.findByText(text)).toBeTruthy();
});

test("a decision that somebody else made first is a refusal, and the state is read again", async () => {
  let reads = 0;
  stubGateway({
    [LIST]: listOf(),
    [ONE]: () => ({ json: (reads += 1) === 1 ? transaction("T1") : transaction("T1", decided) }),
    [ROLLBACK]: refused("already-decided", 409),
    [AUDIT]: listOf(),
  });
  await renderView(<TransactionsPage />, { ...OPEN, operations: OPERATIONS });
  const found = await drawer();
  await userEvent.click(await found.findByRole("button", { name: "Roll back" }));
  const question = await screen.findByRole("dialog", { name: "Roll back this transaction?" });
  await userEvent.click(within(question).getByRole("button", { name: "Roll back" }));
  expect((await found.findByRole("alert")).textContent).toContain("already-decided: refused");
  expect(await found.findByText("committed")).toBeTruthy();
});

test.each([
  [{ asked: true, decision: "commit" }, "The producers have answered: commit."],
  [{ asked: true, decision: "unknown" }, /The transaction stays open/],
  [{ asked: false, decision: "rollback" }, /Nobody was asked/],
  [{ asked: false, decision: "unknown" }, /The transaction stays open/],
])("the answer to a check is said: %j", async (answer, text) => {
  stubGateway({ [LIST]: listOf(), [ONE]: { json: transaction("T1") }, [CHECK]: { json: answer } });
  await renderView(<TransactionsPage />, { ...OPEN, operations: OPERATIONS });
  await userEvent.click(await (await drawer()).findByRole("button", { name: "Check now" }));
  const question = await screen.findByRole("dialog", { name: "Ask the producers now?" });
  await userEvent.click(within(question).getByRole("button", { name: "Check now" }));
  // The question says the same about its effect, and is gone by then.
  await vi.waitFor(() => {
    expect(screen.queryByRole("dialog", { name: "Ask the producers now?" })).toBeNull();
  });
  expect(await screen.findByText(text)).toBeTruthy();
});

test("every action can be copied as commands", async () => {
  stubGateway({ [LIST]: listOf(), [ONE]: { json: transaction("T1") } });
  await renderView(<TransactionsPage />, { ...OPEN, operations: OPERATIONS });
  const found = await drawer();
  for (const [name, title] of [
    ["Commit", "Commit this transaction?"],
    ["Roll back", "Roll back this transaction?"],
    ["Check now", "Ask the producers now?"],
  ] as const) {
    await userEvent.click(await found.findByRole("button", { name }));
    const question = await screen.findByRole("dialog", { name: title });
    expect(within(question).getByRole("button", { name: "Copy as" })).toBeTruthy();
    await userEvent.click(within(question).getByRole("button", { name: "Cancel" }));
  }
});

test("a RocketMQ client's producers can't be asked, and the decision says where it is made", async () => {
  stubGateway({ [LIST]: listOf(), [ONE]: { json: transaction("T1", { origin: "remoting" }) } });
  await renderView(<TransactionsPage />, { ...OPEN, operations: OPERATIONS });
  const found = await drawer();
  await userEvent.click(await found.findByRole("button", { name: "Commit" }));
  expect(found.queryByRole("button", { name: "Check now" })).toBeNull();
  const question = await screen.findByRole("dialog", { name: "Commit this transaction?" });
  expect(question.textContent).toContain("It is decided at its broker.");
});

test.each([
  [{ state: "expired", next_check_at: null, checks: 15 }, "nobody: the broker gave up asking"],
  [{ ...decided, decided_at: null }, "a client, at its broker"],
  [{ ...decided, error: "topic orders does not exist" }, "topic orders does not exist"],
])("an ended transaction can't be decided: %j", async (change, text) => {
  stubGateway({ [LIST]: listOf(), [ONE]: { json: transaction("T1", change) }, [AUDIT]: listOf() });
  await renderView(<TransactionsPage />, { ...OPEN, operations: OPERATIONS });
  const found = await drawer();
  expect(await found.findByText(text)).toBeTruthy();
  expect(found.queryByRole("button", { name: "Commit" })).toBeNull();
});

test("a viewer reads and changes nothing, and does not learn who decided", async () => {
  const sent = stubGateway({
    [LIST]: listOf(transaction("T2")),
    [ONE]: { json: transaction("T1", decided) },
  });
  await renderView(<TransactionsPage />, { ...OPEN, role: "viewer", operations: OPERATIONS });
  const found = await drawer();
  expect((await found.findByText("Decided by")).parentElement?.textContent).toBe("Decided byunknown");
  expect(found.queryByRole("button", { name: "Commit" })).toBeNull();
  expect(sent.some((call) => call.path === "/v1/audit")).toBe(false);
});

test("a refusal is shown, and a transaction that does not exist is an error", async () => {
  stubGateway({ [LIST]: refused("forbidden", 403), [ONE]: refused("unknown-transaction", 404) });
  await renderView(<TransactionsPage />, { ...OPEN, operations: OPERATIONS });
  expect(await screen.findByText(/forbidden: refused/)).toBeTruthy();
  expect(await (await drawer()).findByText(/unknown-transaction: refused/)).toBeTruthy();
});

test("a decision that reaches its broker later is then said to be there", async () => {
  let change: object = {};
  stubGateway({
    [LIST]: listOf(),
    [ONE]: () => ({ json: transaction("T1", change) }),
    [COMMIT]: () => {
      change = { ...decided, error: "no answer in time" };
      return { json: { state: "committed", delivered: false } };
    },
    [AUDIT]: listOf(),
  });
  await renderView(<TransactionsPage />, { ...OPEN, operations: OPERATIONS });
  const found = await drawer();
  await userEvent.click(await found.findByRole("button", { name: "Commit" }));
  const question = await screen.findByRole("dialog", { name: "Commit this transaction?" });
  await userEvent.click(within(question).getByRole("button", { name: "Commit" }));
  expect(await found.findByText(/The broker does not have the decision yet; a gateway/)).toBeTruthy();
  change = { ...decided, delivered_at: "2026-01-01T00:02:00.000Z" };
  const later = await found.findByText(/The broker has the decision/, undefined, { timeout: 8_000 });
  expect(later.textContent).toContain("delivers the message");
  expect(found.queryByText(/does not have the decision yet/)).toBeNull();
}, 20_000);
