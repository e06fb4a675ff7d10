import { expect, test } from "vitest";
import { arrived, EMPTY_TAIL, reconnected, SHOWN_MAX, skipped, type TailView } from "./tail";

test("the newest messages are first, and those that leave the view are counted", () => {
  const first = arrived<number>(EMPTY_TAIL, [1, 2, 3]);
  expect(first).toMatchObject({ rows: [3, 2, 1], received: 3, left: 0 });
  const many = arrived(
    first,
    Array.from({ length: 2 * SHOWN_MAX }, (_, at) => at + 4),
  );
  expect(many.rows).toHaveLength(SHOWN_MAX);
  expect([many.rows[0], many.received, many.left]).toEqual([2 * SHOWN_MAX + 3, 2 * SHOWN_MAX + 3, SHOWN_MAX + 3]);
});

test("skipped messages are summed over connections, without loss", () => {
  let view: TailView<number> = skipped<number>(EMPTY_TAIL, "9007199254740993");
  view = skipped(reconnected(view), "2");
  view = skipped(view, "5");
  expect(view.skipped).toBe(9007199254740998n);
});
