// @vitest-environment jsdom
import { useQuery } from "@tanstack/react-query";
import { act, cleanup, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useState } from "react";
import { afterEach, expect, test, vi } from "vitest";
import { ApiError } from "@/api/api-error";
import { renderView } from "@/testing/render";
import { BodyViewer } from "./body-viewer";
import { Chart } from "./chart";
import { useConfirm } from "./confirm";
import { CopyAs } from "./copy-as";
import { DataTable, sortRows, type Column } from "./data-table";
import { useFormat } from "./format";
import { PageFrame, QueryState } from "./page-frame";
import { pathOf } from "./sparkline";
import { parseSearch, stringifySearch, useUrlState } from "./url-state";
import { Ago, Name, Value, When } from "./value";

afterEach(() => vi.unstubAllGlobals());

const problem = (status: number, kind: string) =>
  new ApiError(
    status,
    {
      type: `https://gantry.dev/problems/${kind}`,
      title: kind,
      status,
      detail: "why",
      retryable: false,
      request_id: "r7",
    },
    "why",
  );

function Asked({ answers }: { answers: (() => unknown)[] }) {
  const [turn, setTurn] = useState(0);
  const query = useQuery({
    queryKey: ["asked"],
    queryFn: () => answers[Math.min(turn, answers.length - 1)]?.(),
    retry: false,
  });
  return (
    <>
      <button
        onClick={() => {
          setTurn(turn + 1);
          setTimeout(() => void query.refetch());
        }}
      >
        next
      </button>
      <QueryState query={query} isEmpty={(data) => Array.isArray(data) && data.length === 0} empty="none yet">
        {(data) => <p>{JSON.stringify(data)}</p>}
      </QueryState>
    </>
  );
}

const fail = (error: Error) => () => Promise.reject(error);

test("a page shows that it loads, and that there is nothing", async () => {
  let finish: (value: unknown) => void = () => undefined;
  await renderView(<Asked answers={[() => new Promise((resolve) => (finish = resolve))]} />);
  expect(screen.getByRole("status", { name: "Loading" })).toBeTruthy();
  finish([]);
  expect(await screen.findByText("none yet")).toBeTruthy();
});

test.each([
  [problem(403, "forbidden"), "Your role may not do this"],
  [problem(401, "unauthenticated"), "Your session had ended"],
  [problem(503, "metadata-unavailable"), "The metadata is unavailable"],
  [problem(500, "internal-error"), "Internal error"],
  [new ApiError(0, null, "x"), "The gateway does not answer"],
])("an error says what happened: %s", async (error, title) => {
  await renderView(<Asked answers={[fail(error)]} />);
  const alert = await screen.findByRole("alert");
  expect(within(alert).getByText(title)).toBeTruthy();
  if (error.problem) expect(within(alert).getByText("r7")).toBeTruthy();
});

test("the titles of problems are Chinese in the Chinese console; a kind of a later version keeps its own", async () => {
  await renderView(<Asked answers={[fail(problem(404, "unknown-topic"))]} />, { language: "zh" });
  expect(await screen.findByText("没有这个主题")).toBeTruthy();
  cleanup();
  await renderView(<Asked answers={[fail(problem(409, "of-tomorrow"))]} />, { language: "zh" });
  expect(await screen.findByText("of-tomorrow")).toBeTruthy();
});

test("after a failure the last answer stays, with its age", async () => {
  await renderView(<Asked answers={[() => Promise.resolve({ n: 1 }), fail(problem(500, "internal-error"))]} />);
  expect(await screen.findByText('{"n":1}')).toBeTruthy();
  await userEvent.click(screen.getByText("next"));
  expect(await screen.findByText("These numbers are old")).toBeTruthy();
  expect(screen.getByText('{"n":1}')).toBeTruthy();
});

test("an answer of the brokers alone says so", async () => {
  await renderView(<Asked answers={[() => Promise.resolve({ metadata: "unavailable" })]} />);
  expect(await screen.findByText(/Postgres does not answer/)).toBeTruthy();
});

test("an unknown value is shown as unknown, and zero as zero", async () => {
  await renderView(
    <>
      <Value>{null}</Value>
      <Value unit="msg/s">{0}</Value>
    </>,
  );
  expect(screen.getByText("unknown")).toBeTruthy();
  expect(screen.getByText("0")).toBeTruthy();
});

test("a name shows the characters that would hide or turn text", async () => {
  await renderView(<Name>{"invoice\u202egpj.exe"}</Name>);
  expect(screen.getByText("\\u{202e}").parentElement?.textContent).toBe("invoice\\u{202e}gpj.exe");
});

interface Row {
  name: string;
  size: bigint | null;
}

const COLUMNS: Column<Row>[] = [
  { key: "name", header: "Name", cell: (row) => row.name, sortBy: (row) => row.name },
  { key: "size", header: "Size", cell: (row) => String(row.size), sortBy: (row) => row.size },
];

test("rows are sorted by 64-bit values and numbers in names, and unknown values come last", () => {
  const rows = [
    { name: "t10", size: 9007199254740993n },
    { name: "t9", size: null },
    { name: "t1", size: 9007199254740992n },
  ];
  const names = (key: string, descending: boolean) =>
    sortRows(rows, COLUMNS, { key, descending }).map((row) => row.name);
  expect(names("name", false)).toEqual(["t1", "t9", "t10"]);
  expect(names("size", false)).toEqual(["t1", "t10", "t9"]);
  expect(names("size", true)).toEqual(["t10", "t1", "t9"]);
});

test("a table of 5,000 rows has few elements, and keys move through it", async () => {
  const rows = Array.from({ length: 5_000 }, (_, at) => ({ name: `t${at}`, size: BigInt(at) }));
  const opened: string[] = [];
  await renderView(
    <DataTable
      label="Topics"
      rows={rows}
      columns={COLUMNS}
      rowKey={(row) => row.name}
      onOpen={(row) => opened.push(row.name)}
    />,
  );
  const table = screen.getByRole("table", { name: "Topics" });
  expect(table.getAttribute("aria-rowcount")).toBe("5001");
  expect(within(table).getAllByRole("row").length).toBeLessThan(60);
  const row = (name: string) => within(table).getByText(name).closest<HTMLElement>("[role=row]") ?? expect.fail(name);
  row("t0").focus();
  await userEvent.keyboard("{ArrowDown}");
  await waitFor(() => {
    expect(document.activeElement).toBe(row("t1"));
  });
  await userEvent.keyboard("{Enter}");
  await userEvent.click(row("t2"));
  expect(opened).toEqual(["t1", "t2"]);
  await userEvent.click(within(table).getByRole("button", { name: /Size/ }));
  await userEvent.click(within(table).getByRole("button", { name: /Size/ }));
  expect(within(table).getByRole("columnheader", { name: /Size/ }).getAttribute("aria-sort")).toBe("descending");
  expect(row("t4999")).toBeTruthy();
});

test("a row that can't be opened does not look or act as if it could", async () => {
  const opened: string[] = [];
  await renderView(
    <DataTable
      label="Topics"
      rows={["open", "shut"].map((name) => ({ name, size: 0n }))}
      columns={COLUMNS}
      rowKey={(row) => row.name}
      onOpen={(row) => opened.push(row.name)}
      canOpen={(row) => row.name === "open"}
    />,
  );
  const rows = ["open", "shut"].map((name) => screen.getByText(name).closest<HTMLElement>("[role=row]"));
  expect(rows.map((row) => row?.dataset["link"])).toEqual(["", undefined]);
  for (const row of rows) {
    row?.focus();
    await userEvent.keyboard("{Enter}");
    if (row) await userEvent.click(row);
  }
  expect(opened).toEqual(["open", "open"]);
});

test("a page tells where it belongs, without a separator at the end", async () => {
  await renderView(
    <PageFrame title="billing" crumbs={[{ label: "Groups", to: "/groups" }]}>
      <p>content</p>
    </PageFrame>,
  );
  expect(screen.getByRole("navigation", { name: "billing" }).textContent).toBe("Groups");
});

test("cards are sorted by a list of the columns", async () => {
  const rows = ["b", "c", "a"].map((name, at) => ({ name, size: BigInt(at) }));
  await renderView(<DataTable label="Topics" rows={rows} columns={COLUMNS} rowKey={(row) => row.name} />);
  const table = screen.getByRole("table", { name: "Topics" });
  const names = () =>
    within(table)
      .getAllByRole("row")
      .slice(1)
      .map((row) => within(row).getAllByRole("cell")[0]?.textContent);
  expect(screen.queryByRole("button", { name: "Reverse the order" })).toBeNull();
  await userEvent.selectOptions(screen.getByLabelText(/Sort by/), "Name");
  expect(names()).toEqual(["a", "b", "c"]);
  await userEvent.click(screen.getByRole("button", { name: "Reverse the order" }));
  expect(names()).toEqual(["c", "b", "a"]);
});

function Asking({ onAnswer }: { onAnswer: (agreed: boolean) => void }) {
  const confirm = useConfirm();
  const ask = () =>
    void confirm({ title: "Delete T", effects: ["The topic T goes."], action: "Delete", typed: "T" }).then(onAnswer);
  return <button onClick={ask}>ask</button>;
}

test("a confirmation names what will happen and wants the name", async () => {
  const answers: boolean[] = [];
  await renderView(<Asking onAnswer={(agreed) => answers.push(agreed)} />);
  await userEvent.click(screen.getByText("ask"));
  const dialog = await screen.findByRole("dialog", { name: "Delete T" });
  expect(within(dialog).getByText("The topic T goes.")).toBeTruthy();
  const button = within(dialog).getByRole<HTMLButtonElement>("button", { name: "Delete" });
  expect(button.disabled).toBe(true);
  await userEvent.type(within(dialog).getByLabelText("Type T to confirm"), "T");
  await userEvent.click(button);
  await userEvent.click(screen.getByText("ask"));
  await userEvent.click(await screen.findByRole("button", { name: "Cancel" }));
  expect(answers).toEqual([true, false]);
});

test("hostile bodies stay text", async () => {
  const { container } = await renderView(<BodyViewer body={'<img src=x onerror="alert(1)">\u202egnp.exe'} />);
  expect(container.querySelector("pre img")).toBeNull();
  expect(container.querySelector("pre mark")?.textContent).toBe("\\u{202e}");
  expect(container.querySelector("pre")?.textContent).toContain("<img src=x");
});

test("a large body is shown in parts, all of which can be reached", async () => {
  const body = `${"x".repeat(65_535)}😀${"y".repeat(100_000)}`;
  const { container } = await renderView(<BodyViewer body={body} />);
  const parts: string[] = [];
  for (const part of [1, 2, 3]) {
    expect(screen.getByText(`Part ${part} of 3`)).toBeTruthy();
    parts.push(container.querySelector("pre")?.textContent ?? "");
    if (part < 3) await userEvent.click(screen.getByRole("button", { name: "Next part" }));
  }
  expect(Math.max(...parts.map((part) => part.length))).toBeLessThanOrEqual(65_537);
  expect(parts.join("")).toBe(body);
  expect(screen.getByRole<HTMLButtonElement>("button", { name: "Next part" }).disabled).toBe(true);
  await userEvent.click(screen.getByRole("button", { name: "Previous part" }));
  expect(screen.getByText("Part 2 of 3")).toBeTruthy();
  await userEvent.click(screen.getByRole("radio", { name: "Hex" }));
  expect(screen.getByText("Part 1 of 11")).toBeTruthy();
  await userEvent.click(screen.getByRole("button", { name: "Next part" }));
  expect(container.querySelector("pre")?.textContent).toMatch(/^00004000 {2}78 /);
});

test("an action is copied as a command", async () => {
  const user = userEvent.setup();
  await renderView(
    <CopyAs
      call={{ method: "DELETE", path: "/v1/topics/{topic}", values: { topic: "T" } }}
      gantry="gantry topic delete T"
    />,
  );
  await user.click(screen.getByRole("button", { name: "Copy as" }));
  await user.click(await screen.findByRole("menuitem", { name: "gantry command" }));
  expect(await navigator.clipboard.readText()).toBe("gantry topic delete T");
  // The notification that says so has a name for its button.
  const said = await screen.findByRole("alert");
  expect(within(said).getByRole("button", { name: "Close" })).toBeTruthy();
});

function AskingWithCopy() {
  const confirm = useConfirm();
  const copy = { call: { method: "DELETE", path: "/v1/topics/T" } as const, gantry: "gantry topic delete T" };
  const ask = () => void confirm({ title: "Delete T", effects: ["The topic T goes."], action: "Delete", copy });
  return <button onClick={ask}>ask</button>;
}

test("an action can be copied where it is confirmed, and copying does not do it", async () => {
  const user = userEvent.setup();
  await renderView(<AskingWithCopy />);
  await user.click(screen.getByText("ask"));
  const dialog = await screen.findByRole("dialog", { name: "Delete T" });
  await user.click(within(dialog).getByRole("button", { name: "Copy as" }));
  await user.click(await screen.findByRole("menuitem", { name: "curl command" }));
  expect(await navigator.clipboard.readText()).toMatch(/^curl -sS -X DELETE .*\/v1\/topics\/T$/);
  expect(screen.getByRole("dialog", { name: "Delete T" })).toBe(dialog);
});

function Filter() {
  const [url, setUrl] = useUrlState({ q: "", sort: "name" });
  return (
    <button
      onClick={() => {
        setUrl({ q: "9007199254740993", sort: "name" });
      }}
    >
      {`${url.q}/${url.sort}`}
    </button>
  );
}

test("the state of a page is in its address as text, without defaults", async () => {
  const { address } = await renderView(<Filter />, { at: "/?q=007&other=1" });
  await userEvent.click(screen.getByText("007/name"));
  expect(await screen.findByText("9007199254740993/name")).toBeTruthy();
  expect(address()).toBe("/?q=9007199254740993&other=1");
  expect(parseSearch("?a=1&b=%7B%7D")).toEqual({ a: "1", b: "{}" });
  expect(stringifySearch({ a: "1 2", b: "", c: undefined })).toBe("?a=1+2");
});

test("a line has a gap where a value is unknown", () => {
  expect(pathOf([0, null, 1], 1)).toBe("M0.0 62.0M600.0 2.0");
});

test("a chart draws its series and has a name", async () => {
  const option = {
    xAxis: { type: "category", data: ["a", "b"] },
    yAxis: {},
    series: [{ type: "line", data: [1, null] }],
  };
  await renderView(<Chart label="Lag of G" option={option} />);
  expect(screen.getByRole("img", { name: "Lag of G" }).querySelector("svg path")).toBeTruthy();
});

test.each([
  ["en", "Feb"],
  ["zh", "2月"],
] as const)("the months of a chart are in the chosen language (%s)", async (language, month) => {
  const option = {
    xAxis: { type: "time" },
    yAxis: {},
    series: [{ type: "line", data: ["2026-01-10", "2026-02-10", "2026-03-10"].map((day) => [day, 1]) }],
  };
  await renderView(<Chart label="Lag of G" option={option} />, { language });
  expect(within(screen.getByRole("img", { name: "Lag of G" })).getByText(month)).toBeTruthy();
});

function Numbers() {
  const format = useFormat();
  return [format.duration(0.25), format.duration(90_061), format.bytes(12), format.bytes(1_536)].join("; ");
}

test.each([
  ["en", "250 ms; 1 d 1 h; 12 B; 1.5 KiB"],
  ["zh", "250 毫秒; 1 天 1 小时; 12 字节; 1.5 KiB"],
] as const)("units are in the chosen language (%s)", async (language, text) => {
  await renderView(<Numbers />, { language });
  expect(screen.getByText(text)).toBeTruthy();
});

test.each([
  ["en", ["just now", "1 s ago", "2 min ago", "in 1 s", "just now", "3 s ago", "unknown"]],
  ["zh", ["刚刚", "1 秒前", "2 分钟前", "1 秒后", "刚刚", "3 秒前", "未知"]],
] as const)("ages below a second have no number, and the next tick renews them (%s)", async (language, texts) => {
  vi.useFakeTimers({ now: Date.UTC(2026, 0, 1), toFake: ["Date", "setInterval", "clearInterval"] });
  try {
    const now = Date.now();
    await renderView(
      <ul>
        {[now - 290, now - 1_000, now - 120_000].map((time) => (
          <li key={time}>
            <Ago time={time} />
          </li>
        ))}
        {[now + 290, now - 290, now - 3_000, null].map((time) => (
          <li key={time}>
            <When time={time} />
          </li>
        ))}
      </ul>,
      { language },
    );
    const shown = () => screen.getAllByRole("listitem").map((each) => each.textContent);
    expect(shown()).toEqual(texts);
    act(() => {
      vi.advanceTimersByTime(1_000);
    });
    expect(shown()[0]).toBe(language === "en" ? "1 s ago" : "1 秒前");
  } finally {
    vi.useRealTimers();
  }
});
