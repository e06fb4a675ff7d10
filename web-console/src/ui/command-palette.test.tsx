// @vitest-environment jsdom
import { openSpotlight } from "@mantine/spotlight";
import { act, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, test, vi } from "vitest";
import { stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { CommandPalette } from "./command-palette";

afterEach(() => vi.unstubAllGlobals());

test("the palette finds topics and groups by their names, of all pages, and reads them only for a search", async () => {
  const list = (names: string[], key: string, next_cursor: string | null) => ({
    json: { items: names.map((name) => ({ [key]: name })), next_cursor },
  });
  const sent = stubGateway({
    "GET /v1/topics": list(["orders"], "topic", null),
    "GET /v1/groups": (call) =>
      call.query.cursor === undefined ? list(["shipping"], "group", "c1") : list(["billing-orders"], "group", null),
  });
  const { address } = await renderView(<CommandPalette />, { operations: ["GET /v1/topics", "GET /v1/groups"] });
  act(openSpotlight);
  const field = await screen.findByRole("textbox", { name: "Search pages, topics, groups and commands" });
  expect(sent).toEqual([]);
  await userEvent.type(field, "ord bil");
  await userEvent.click(await screen.findByText("billing-orders"));
  expect(address()).toBe("/groups/billing-orders");
});
