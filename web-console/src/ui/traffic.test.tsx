// @vitest-environment jsdom
import { useQuery } from "@tanstack/react-query";
import { screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { expect, test } from "vitest";
import type { Flow, Statistics } from "@/models/traffic";
import { renderView } from "@/testing/render";
import { Traffic } from "./traffic";

const flow = (kind: Flow["kind"], broker: string | null, messages: number, bytes: number | null): Flow => {
  const window = { messages, bytes, messages_per_s: messages / 60, bytes_per_s: null };
  return { kind, topic: "orders", group: "billing", broker, minute: window, hour: window, day: window };
};

function Shown({ found, of }: { found: Statistics; of: "topic" | "group" }) {
  const query = useQuery({ queryKey: ["traffic"], queryFn: () => found });
  const call = { method: "GET", path: "/v1/groups/{group}/statistics", values: { group: "billing" } } as const;
  return <Traffic query={query} of={of} command={{ call, gantry: "gantry group stats billing" }} />;
}

const items = [flow("delivered", "broker-a", 60, 2_048), flow("dead", "broker-b", 1, null)];
const rowsOf = async () =>
  within(await screen.findByRole("table", { name: "Traffic" }))
    .getAllByRole("row")
    .slice(1)
    .map((row) => row.textContent);

test("sums are shown with sizes where they are known, and brokers on demand", async () => {
  const sums = [flow("delivered", null, 61, 2_048)];
  const view = await renderView(<Shown found={{ items, sums, missing: [], truncated: false }} of="group" />);
  expect(await rowsOf()).toEqual(["ordersdelivered1.0261 · 2 KiB61 · 2 KiB61 · 2 KiB"]);
  await userEvent.click(screen.getByRole("switch", { name: "By broker" }));
  expect(await rowsOf()).toEqual([
    "ordersdeliveredbroker-a160 · 2 KiB60 · 2 KiB60 · 2 KiB",
    "ordersdeadbroker-b0.02111",
  ]);
  expect(view.address()).toBe("/?brokers=yes");
});

test("if a broker does not answer, there is no sum, and the reason is said", async () => {
  const found = { items, sums: null, missing: ["broker-c: does not answer"], truncated: true };
  await renderView(<Shown found={found} of="topic" />);
  expect(await rowsOf()).toHaveLength(2);
  expect(screen.getByText("broker-c: does not answer")).toBeTruthy();
  expect(screen.getByText(/more than 1,000 flows/)).toBeTruthy();
});

test("no flow is not the same as no answer", async () => {
  const nothing = { items: [], sums: [], missing: [], truncated: false };
  const view = await renderView(<Shown found={nothing} of="group" />);
  expect(await screen.findByText("No message flowed since the brokers started.")).toBeTruthy();
  view.unmount();
  await renderView(<Shown found={{ ...nothing, sums: null, missing: ["broker-a: down"] }} of="group" />);
  expect(await screen.findByText("It is unknown whether messages flowed.")).toBeTruthy();
});
