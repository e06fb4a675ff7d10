// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { BrokerPage } from "./broker-page";
import { BrokersPage } from "./brokers-page";

afterEach(() => vi.unstubAllGlobals());

const OPERATIONS = [
  "GET /v1/cluster",
  "GET /v1/brokers/{broker}/settings",
  "PUT /v1/brokers/{broker}/settings",
  "POST /v1/brokers/{broker}:drain",
  "POST /v1/brokers/{broker}:undrain",
];

const broker = (name: string, change: object = {}) => ({
  cluster: "main",
  broker: name,
  broker_id: 0,
  role: "master",
  address: "10.0.0.1:10911",
  reachable: true,
  detail: null,
  drained: false,
  version: "1.0",
  store: {
    disk_ratio: 0.42,
    min_physical_offset: "9007199254740993",
    max_physical_offset: "9007199254742017",
    writable: true,
    put_tps: 12.5,
    flush_behind_bytes: 2_048,
  },
  ...change,
});
const cluster = (...brokers: object[]) => ({ json: { name_servers: [], brokers, metadata: "available" } });
const setting = (name: string, value: string, change: object = {}) => ({
  name,
  value,
  default: value,
  live: true,
  changed: false,
  ...change,
});
const at = (query = "") => ({ path: "/brokers/$broker", at: `/brokers/broker-a${query}`, operations: OPERATIONS });

test("brokers have their state and numbers, and what one does not tell is unknown", async () => {
  const lost = broker("broker-b", { reachable: false, detail: "connection refused", drained: null, store: null });
  stubGateway({ "GET /v1/cluster": cluster(broker("broker-a"), lost) });
  await renderView(<BrokersPage />, { operations: OPERATIONS });
  const rows = within(await screen.findByRole("table", { name: "Brokers" })).getAllByRole("row");
  expect(rows[1]?.textContent).toMatch(/broker-aMasterTakes messages12\.5unknown.*42%2 KiB/);
  expect(rows[2]?.textContent).toMatch(/broker-bMasterUnreachableunknown/);
});

test("draining asks first, and says that nobody could send if no other broker is there", async () => {
  const sent = stubGateway({
    "GET /v1/cluster": cluster(broker("broker-a"), broker("broker-b", { drained: true })),
    "POST /v1/brokers/{broker}:drain": { json: { broker: "broker-a", drained: true, changed: true } },
  });
  await renderView(<BrokerPage />, at());
  fireEvent.click(await screen.findByRole("button", { name: "Drain" }));
  const dialog = await screen.findByRole("dialog", { name: "Drain broker-a?" });
  expect(within(dialog).getByText(/nobody can send until broker-a is back/)).toBeTruthy();
  expect(sent.filter((call) => call.method === "POST")).toEqual([]);
  fireEvent.click(within(dialog).getByRole("button", { name: "Drain" }));
  expect(await screen.findByText("broker-a takes no more messages.")).toBeTruthy();
  expect(sent.filter((call) => call.method === "POST").map((call) => call.path)).toEqual([
    "/v1/brokers/broker-a:drain",
  ]);
});

test("a drained broker can be taken back; a viewer and a broker that does not tell have no way", async () => {
  const sent = stubGateway({
    "GET /v1/cluster": cluster(broker("broker-a", { drained: true })),
    "POST /v1/brokers/{broker}:undrain": refused("broker-unavailable", 503, "broker-a does not answer"),
  });
  const view = await renderView(<BrokerPage />, at());
  fireEvent.click(await screen.findByRole("button", { name: "Undo drain" }));
  fireEvent.click(await screen.findByRole("button", { name: "Take messages" }));
  expect(await screen.findByText("broker-a does not answer")).toBeTruthy();
  expect(sent.some((call) => call.path === "/v1/brokers/broker-a:undrain")).toBe(true);
  view.unmount();
  await renderView(<BrokerPage />, { ...at(), role: "viewer" });
  expect(await screen.findByText("10.0.0.1:10911")).toBeTruthy();
  expect(screen.queryByRole("button", { name: "Undo drain" })).toBeNull();
});

test("if no answer says whether a broker is drained, the console does not claim that it is not", async () => {
  stubGateway({
    "GET /v1/cluster": cluster(broker("broker-a", { drained: true })),
    "POST /v1/brokers/{broker}:undrain": refused("broker-timeout", 504),
  });
  await renderView(<BrokerPage />, at());
  fireEvent.click(await screen.findByRole("button", { name: "Undo drain" }));
  fireEvent.click(await screen.findByRole("button", { name: "Take messages" }));
  expect(await screen.findByText("The outcome is unknown")).toBeTruthy();
  expect(screen.queryByText(/was not changed/)).toBeNull();
});

test("the size of a store is exact beyond 2^53", async () => {
  stubGateway({ "GET /v1/cluster": cluster(broker("broker-a")) });
  await renderView(<BrokerPage />, at());
  expect(await screen.findByText("1 KiB")).toBeTruthy();
});

test("settings are saved with the values they had, after the difference was shown", async () => {
  const settings = [setting("max_message_size", "4194304"), setting("flush_disk_type", "async", { live: false })];
  const sent = stubGateway({
    "GET /v1/cluster": cluster(broker("broker-a")),
    "GET /v1/brokers/{broker}/settings": { json: { broker: "broker-a", items: settings } },
    "PUT /v1/brokers/{broker}/settings": {
      json: { broker: "broker-a", items: [setting("max_message_size", "8388608", { changed: true }), settings[1]] },
    },
  });
  await renderView(<BrokerPage />, at("?tab=settings"));
  fireEvent.change(await screen.findByLabelText("max_message_size"), { target: { value: "8388608" } });
  expect(screen.queryByLabelText("flush_disk_type")).toBeNull();
  const rows = within(screen.getByRole("table", { name: "Difference" })).getAllByRole("row");
  expect(rows[1]?.textContent).toBe("max_message_size41943048388608");
  fireEvent.click(screen.getByRole("button", { name: "Save" }));
  const dialog = await screen.findByRole("dialog", { name: "Change settings of broker-a?" });
  expect(within(dialog).getByText("max_message_size: 4194304 becomes 8388608.")).toBeTruthy();
  fireEvent.click(within(dialog).getByRole("button", { name: "Save" }));
  expect(await screen.findByText("The settings are in effect.")).toBeTruthy();
  expect(sent.find((call) => call.method === "PUT")?.body).toEqual({
    settings: { max_message_size: "8388608" },
    expected: { max_message_size: "4194304" },
  });
  expect(screen.queryByRole("table", { name: "Difference" })).toBeNull();
});

test("the second of two people sees the difference, keeps the own change, and saves it against the new value", async () => {
  let value = "15";
  const sent = stubGateway({
    "GET /v1/cluster": cluster(broker("broker-a")),
    "GET /v1/brokers/{broker}/settings": () => ({
      json: { broker: "broker-a", items: [setting("transaction_check_max", value)] },
    }),
    "PUT /v1/brokers/{broker}/settings": () => {
      value = "20";
      return {
        status: 409,
        json: {
          type: "https://gantry.dev/problems/settings-changed",
          title: "The settings changed",
          status: 409,
          detail: "changed",
          differences: [{ name: "transaction_check_max", expected: "15", actual: "20" }],
        },
      };
    },
  });
  await renderView(<BrokerPage />, at("?tab=settings"));
  fireEvent.change(await screen.findByLabelText("transaction_check_max"), { target: { value: "30" } });
  const saveOnce = async () => {
    fireEvent.click(screen.getByRole("button", { name: "Save" }));
    fireEvent.click(within(await screen.findByRole("dialog")).getByRole("button", { name: "Save" }));
  };
  await saveOnce();
  const conflict = await screen.findByRole("table", { name: "Another person changed these settings" });
  expect(within(conflict).getAllByRole("row")[1]?.textContent).toBe("transaction_check_max152030");
  await vi.waitFor(() => {
    const rows = within(screen.getByRole("table", { name: "Difference" })).getAllByRole("row");
    expect(rows[1]?.textContent).toBe("transaction_check_max2030");
  });
  await saveOnce();
  await vi.waitFor(() => {
    const bodies = sent.filter((call) => call.method === "PUT").map((call) => call.body);
    expect(bodies[1]).toEqual({ settings: { transaction_check_max: "30" }, expected: { transaction_check_max: "20" } });
  });
});

test("a refusal of a value goes when another value is typed, and a section keeps what was typed into it", async () => {
  stubGateway({
    "GET /v1/cluster": cluster(broker("broker-a")),
    "GET /v1/brokers/{broker}/settings": {
      json: { broker: "broker-a", items: [setting("transaction_check_max", "15")] },
    },
    "PUT /v1/brokers/{broker}/settings": refused("invalid-value", 400, "'lots' is not a whole number"),
  });
  await renderView(<BrokerPage />, at("?tab=settings"));
  fireEvent.change(await screen.findByLabelText("transaction_check_max"), { target: { value: "lots" } });
  fireEvent.click(screen.getByRole("button", { name: "Save" }));
  fireEvent.click(within(await screen.findByRole("dialog")).getByRole("button", { name: "Save" }));
  expect(await screen.findByText("'lots' is not a whole number")).toBeTruthy();
  fireEvent.change(screen.getByLabelText("transaction_check_max"), { target: { value: "33" } });
  await vi.waitFor(() => {
    expect(screen.queryByText("'lots' is not a whole number")).toBeNull();
  });
  fireEvent.click(screen.getByRole("tab", { name: "State" }));
  expect(await screen.findByText("10.0.0.1:10911")).toBeTruthy();
  fireEvent.click(screen.getByRole("tab", { name: "Settings" }));
  expect((await screen.findByLabelText<HTMLInputElement>("transaction_check_max")).value).toBe("33");
});

test("a value that somebody else has set since is not written over unseen, also if it was read anew meanwhile", async () => {
  let value = "15";
  const sent = stubGateway({
    "GET /v1/cluster": cluster(broker("broker-a")),
    "GET /v1/brokers/{broker}/settings": () => ({
      json: { broker: "broker-a", items: [setting("transaction_check_max", value)] },
    }),
    "PUT /v1/brokers/{broker}/settings": refused("settings-changed", 409),
    "POST /v1/brokers/{broker}:drain": { json: { broker: "broker-a", drained: true, changed: true } },
  });
  await renderView(<BrokerPage />, at("?tab=settings"));
  fireEvent.change(await screen.findByLabelText("transaction_check_max"), { target: { value: "44" } });
  value = "20";
  fireEvent.click(screen.getByRole("button", { name: "Drain" }));
  fireEvent.click(within(await screen.findByRole("dialog")).getByRole("button", { name: "Drain" }));
  await vi.waitFor(() => {
    expect(sent.filter((call) => call.path.endsWith("/settings"))).toHaveLength(2);
  });
  fireEvent.click(screen.getByRole("button", { name: "Save" }));
  fireEvent.click(within(await screen.findByRole("dialog")).getByRole("button", { name: "Save" }));
  await vi.waitFor(() => {
    expect(sent.find((call) => call.method === "PUT")?.body).toEqual({
      settings: { transaction_check_max: "44" },
      expected: { transaction_check_max: "15" },
    });
  });
});
