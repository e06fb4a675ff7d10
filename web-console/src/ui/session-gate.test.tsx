// @vitest-environment jsdom
import { notifications } from "@mantine/notifications";
import { QueryClientProvider } from "@tanstack/react-query";
import { screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { act } from "react";
import { afterEach, expect, test, vi } from "vitest";
import { sessionQuery } from "@/api/session";
import { renderView } from "@/testing/render";
import { makeQueryClient } from "./query-client";
import { useOperations } from "./session";
import { SessionGate } from "./session-gate";

afterEach(() => vi.unstubAllGlobals());

const drawn: boolean[] = [];

function Page() {
  const isThere = useOperations()(["GET /v1/topics"]);
  drawn.push(isThere);
  return <p>{isThere ? "with topics" : "without topics"}</p>;
}

/** Renders a page behind the gate; returns a function that answers the request for the contract. */
async function open(session: Response): Promise<(contract: Response) => Promise<void>> {
  drawn.length = 0;
  let resolve: (contract: Response) => void = () => undefined;
  const waiting = new Promise<Response>((done) => {
    resolve = done;
  });
  vi.stubGlobal("fetch", (address: string) => (address === "/openapi.json" ? waiting : Promise.resolve(session)));
  await renderView(
    <QueryClientProvider client={makeQueryClient()}>
      <SessionGate>
        <Page />
      </SessionGate>
    </QueryClientProvider>,
  );
  return (contract) =>
    act(async () => {
      resolve(contract);
      await waiting;
    });
}

const caller = () => Response.json({ user: "ada", key: null, role: "admin", rights: {}, expires_at: null, csrf: "t" });

test("a page is drawn once the contract is known, and not without any operation before", async () => {
  const answer = await open(caller());
  await answer(Response.json({ paths: { "/v1/topics": { get: {} } } }));
  expect(await screen.findByText("with topics")).toBeTruthy();
  expect(drawn).not.toContain(false);
});

test("without a contract the page is there all the same, after the last attempt to get it", async () => {
  const answer = await open(caller());
  await answer(new Response("", { status: 404 }));
  expect(await screen.findByText("without topics", {}, { timeout: 10_000 })).toBeTruthy();
});

test("who is not logged in does not wait for the contract", async () => {
  const problem = { type: "https://gantry.dev/problems/unauthenticated", title: "", status: 401, detail: "" };
  const headers = { "content-type": "application/problem+json" };
  await open(new Response(JSON.stringify(problem), { status: 401, headers }));
  await waitFor(() => {
    expect(screen.getByRole("button", { name: "Log in" })).toBeTruthy();
  });
  expect(drawn).toEqual([]);
});

test("notifications of the session before go with the log-in", async () => {
  const requests: string[] = [];
  vi.stubGlobal("fetch", (address: string, init: RequestInit) => {
    requests.push(`${init.method ?? "GET"} ${address}`);
    return Promise.resolve(
      address === "/openapi.json" ? Response.json({ paths: { "/v1/topics": { get: {} } } }) : caller(),
    );
  });
  const client = makeQueryClient();
  await renderView(
    <QueryClientProvider client={client}>
      <SessionGate>
        <Page />
      </SessionGate>
    </QueryClientProvider>,
  );
  await screen.findByText("with topics");
  act(() => {
    notifications.show({ message: "The topic was not deleted", color: "red", autoClose: false });
    client.setQueryData(sessionQuery.queryKey, null);
  });
  await userEvent.type(await screen.findByRole("textbox", { name: "User" }), "ada");
  expect(screen.getByText("The topic was not deleted")).toBeTruthy();
  await userEvent.type(screen.getByLabelText(/^Password/), "secret{Enter}");
  await waitFor(() => {
    expect(screen.queryByText("The topic was not deleted")).toBeNull();
  });
  expect(requests).toContain("POST /v1/session");
});
