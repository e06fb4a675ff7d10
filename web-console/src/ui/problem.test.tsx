// @vitest-environment jsdom
import { screen } from "@testing-library/react";
import { expect, test } from "vitest";
import { ApiError } from "@/api/api-error";
import { renderView } from "@/testing/render";
import { Problem } from "./problem";

test("a read without an answer is tried again; a change is not, and may have been made", async () => {
  const view = await renderView(<Problem error={new ApiError(0, null, "x")} />);
  expect(screen.getByText("The console tries again by itself.")).toBeTruthy();
  view.unmount();
  await renderView(<Problem error={new ApiError(0, null, "x", null, true)} />);
  expect(screen.getByText(/No answer says whether this was done/)).toBeTruthy();
  expect(screen.queryByText(/tries again by itself/)).toBeNull();
});

test("a change that a broker did not answer in time may have been made, too", async () => {
  const problem = {
    type: "https://gantry.dev/problems/broker-timeout",
    title: "The broker did not answer in time",
    status: 504,
    detail: "no answer in time",
    request_id: "r1",
    retryable: true,
  };
  const view = await renderView(<Problem error={new ApiError(504, problem, "no answer in time")} />);
  expect(screen.queryByText(/No answer says whether this was done/)).toBeNull();
  view.unmount();
  await renderView(<Problem error={new ApiError(504, problem, "no answer in time", null, true)} />);
  expect(screen.getByText("no answer in time")).toBeTruthy();
  expect(screen.getByText(/No answer says whether this was done/)).toBeTruthy();
});
