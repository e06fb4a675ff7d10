import { expect, test } from "vitest";
import { arrived, EMPTY_TAIL, reconnected, SHOWN_BYTES_MAX, SHOWN_MAX, skipped, type TailView } from "./tail";

const message = (id: number, size = 1) => ({ id, size });

test("the newest messages are first, and those that leave the view are counted", () => {
  const first = arrived(EMPTY_TAIL, [message(1), message(2), message(3)]);
  expect(first).toMatchObject({ rows: [{ id: 3 }, { id: 2 }, { id: 1 }], received: 3, left: 0 });
  const many = arrived(
    first,
    Array.from({ length: 2 * SHOWN_MAX }, (_, at) => message(at + 4)),
  );
  expect(many.rows).toHaveLength(SHOWN_MAX);
  expect([many.rows[0]?.id, many.received, many.left]).toEqual([2 * SHOWN_MAX + 3, 2 * SHOWN_MAX + 3, SHOWN_MAX + 3]);
});

test("large messages leave the view before they fill the memory of the tab", () => {
  const half = SHOWN_BYTES_MAX / 2;
  const two = arrived(EMPTY_TAIL, [message(1, half), message(2, half)]);
  expect(two.rows.map(({ id }) => id)).toEqual([2, 1]);
  const three = arrived(two, [message(3, half + 1)]);
  expect([three.rows.map(({ id }) => id), three.received, three.left]).toEqual([[3], 3, 2]);
  const huge = arrived(three, [message(4, SHOWN_BYTES_MAX + 1)]);
  expect([huge.rows.map(({ id }) => id), huge.received, huge.left]).toEqual([[4], 4, 3]);
});

test("skipped messages are summed over connections, without loss", () => {
  let view: TailView<{ size: number }> = skipped<{ size: number }>(EMPTY_TAIL, "9007199254740993");
  view = skipped(reconnected(view), "2");
  view = skipped(view, "5");
  expect(view.skipped).toBe(9007199254740998n);
});
