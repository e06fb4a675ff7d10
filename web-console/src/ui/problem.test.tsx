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
