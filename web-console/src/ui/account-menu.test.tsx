// @vitest-environment jsdom
import { fireEvent, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { afterEach, expect, test, vi } from "vitest";
import { refused, stubGateway } from "@/testing/gateway";
import { renderView } from "@/testing/render";
import { AccountMenu } from "./account-menu";

afterEach(() => vi.unstubAllGlobals());

const OPERATIONS = ["PUT /v1/session/password", "DELETE /v1/users/{user}/sessions"];

async function choose(name: string) {
  await userEvent.click(screen.getByRole("button", { name: "Account" }));
  await userEvent.click(await screen.findByRole("menuitem", { name }));
}

test("the own password is changed if both new ones are the same", async () => {
  const problem = refused("invalid-field", 400, "password: is not the present password").json as object;
  const answers = [{ status: 400, json: { ...problem, field: "/password" } }, { status: 204 }];
  const sent = stubGateway({ "PUT /v1/session/password": () => answers.shift() ?? {} });
  await renderView(<AccountMenu />, { operations: OPERATIONS, role: "viewer" });
  await choose("Change password");
  const dialog = await screen.findByRole("dialog", { name: "Change your password" });
  const fill = (label: RegExp, value: string) => {
    fireEvent.change(within(dialog).getByLabelText(label), { target: { value } });
  };
  const submit = within(dialog).getByRole("button", { name: "Change password" });
  fill(/^Present password/, "old");
  fill(/^New password(?! again)/, "another staple");
  fill(/^New password again/, "another");
  expect(within(dialog).getByText("The two new passwords differ.")).toBeTruthy();
  fireEvent.click(submit);
  expect(sent).toEqual([]);
  fill(/^New password again/, "another staple");
  fireEvent.click(submit);
  expect(await within(dialog).findByText("password: is not the present password")).toBeTruthy();
  fireEvent.click(submit);
  expect(await screen.findByText("Your password is changed.")).toBeTruthy();
  expect(sent.at(-1)?.body).toEqual({ password: "old", new_password: "another staple" });
});

test("a log-out everywhere that fails is said", async () => {
  const sent = stubGateway({ "DELETE /v1/users/{user}/sessions": refused("metadata-unavailable", 503) });
  await renderView(<AccountMenu />, { operations: OPERATIONS });
  await choose("Log out everywhere");
  const question = await screen.findByRole("dialog", { name: "Log out everywhere" });
  expect(within(question).getByText(/All your sessions end/)).toBeTruthy();
  fireEvent.click(within(question).getByRole("button", { name: "Log out everywhere" }));
  expect(await screen.findByText("You are not logged out everywhere")).toBeTruthy();
  expect(sent.map((call) => call.path)).toEqual(["/v1/users/ada/sessions"]);
});

test("a gateway without these operations offers neither", async () => {
  await renderView(<AccountMenu />, { operations: [] });
  await userEvent.click(screen.getByRole("button", { name: "Account" }));
  expect(await screen.findByRole("menuitem", { name: "Log out" })).toBeTruthy();
  expect(screen.getAllByRole("menuitem")).toHaveLength(1);
});
