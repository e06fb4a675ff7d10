// @vitest-environment jsdom
import { Menu, NativeSelect, TextInput } from "@mantine/core";
import { fireEvent, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useState } from "react";
import { expect, test } from "vitest";
import { renderView } from "@/testing/render";
import { useConfirm } from "./confirm";
import { DataTable, type Column } from "./data-table";
import { Dialog, Panel } from "./dialog";

type Kind = "dialog" | "panel" | "menu" | "gone";

const COLUMNS: Column<number>[] = [{ key: "n", header: "Number", cell: String, sortBy: (row) => row }];

/** Rows that open one thing each; the dialog of "gone" takes away the row that opened it. */
function Page() {
  const [open, setOpen] = useState<Kind | null>(null);
  const [isGone, setGone] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const confirm = useConfirm();
  const close = () => {
    setOpen(null);
  };
  const opener = (kind: Kind) => (
    <button
      key={kind}
      onClick={() => {
        setOpen(kind);
      }}
    >
      {kind}
    </button>
  );
  return (
    <main tabIndex={-1}>
      <div>
        {opener("dialog")}
        {opener("panel")}
      </div>
      <div>
        {!isGone && opener("gone")}
        <button>neighbour</button>
      </div>
      <button onClick={() => void confirm({ title: "Sure?", effects: ["it goes"], action: "Do it" })}>confirm</button>
      <button
        onClick={() => {
          setGone(true);
        }}
      >
        later
      </button>
      <button onClick={close}>close</button>
      <Menu>
        <Menu.Target>
          <button>menu</button>
        </Menu.Target>
        <Menu.Dropdown>
          <Menu.Item
            onClick={() => {
              setOpen("menu");
            }}
          >
            item
          </Menu.Item>
        </Menu.Dropdown>
      </Menu>
      {open !== null && open !== "panel" && (
        <Dialog opened onClose={close} title="Dialog">
          <TextInput label="Text" data-autofocus />
          <button
            onClick={() => {
              setGone(true);
              close();
            }}
          >
            remove
          </button>
        </Dialog>
      )}
      <Panel opened={open === "panel"} onClose={close} title="Panel">
        <button onClick={() => void confirm({ title: "Sure?", effects: ["it goes"], action: "Do it" })}>inner</button>
        <NativeSelect label="Role" data={["viewer", "operator"]} />
        <DataTable label="Sessions" rows={[1, 2]} columns={COLUMNS} rowKey={String} />
        <button
          disabled={isBusy}
          onClick={() => {
            void confirm({ title: "Sure?", effects: ["it runs"], action: "Do it" }).then(setBusy);
          }}
        >
          run
        </button>
      </Panel>
    </main>
  );
}

const press = (name: string) => userEvent.click(screen.getByRole("button", { name }));
const focused = (name: string) =>
  waitFor(() => {
    expect(document.activeElement?.textContent).toBe(name);
  });

async function opened(name: string) {
  return screen.findByRole("dialog", { name });
}

async function closeByEscape(name: string) {
  await opened(name);
  await waitFor(() => {
    expect(document.activeElement?.closest("[role=dialog]")).not.toBeNull();
  });
  await userEvent.keyboard("{Escape}");
}

test("the focus returns to the control that opened a dialog, a panel or a question", async () => {
  await renderView(<Page />);
  for (const [name, title] of [
    ["dialog", "Dialog"],
    ["panel", "Panel"],
    ["confirm", "Sure?"],
  ] as const) {
    await press(name);
    await closeByEscape(title);
    await focused(name);
  }
});

test("a question over a panel gives the focus back to the panel, and the panel to the page", async () => {
  await renderView(<Page />);
  await press("panel");
  await opened("Panel");
  await press("inner");
  await closeByEscape("Sure?");
  await focused("inner");
  await userEvent.keyboard("{Escape}");
  await focused("panel");
});

test("an item of a menu gives the focus back to the control of the menu", async () => {
  await renderView(<Page />);
  await press("menu");
  await userEvent.click(await screen.findByRole("menuitem", { name: "item" }));
  await closeByEscape("Dialog");
  await focused("menu");
});

test("if the control that opened it is gone, a neighbour gets the focus", async () => {
  await renderView(<Page />);
  await press("gone");
  await opened("Dialog");
  await press("remove");
  await focused("neighbour");
});

test("if that control vanishes after the focus came back, a neighbour gets it, and else the page", async () => {
  await renderView(<Page />);
  await press("gone");
  await closeByEscape("Dialog");
  await focused("gone");
  fireEvent.click(screen.getByText("later"));
  await focused("neighbour");
  screen.getByText("neighbour").parentElement?.remove();
  await waitFor(() => {
    expect(document.activeElement?.closest("main")).not.toBeNull();
  });
});

test("the focus stays in a panel whose button is disabled while its action runs", async () => {
  await renderView(<Page />);
  await press("panel");
  await opened("Panel");
  await press("run");
  await opened("Sure?");
  await press("Do it");
  await waitFor(() => {
    expect(document.activeElement).toBe(screen.getByRole("dialog", { name: "Panel" }));
  });
});

test("Escape asks before it discards what was typed; Escape again goes on typing", async () => {
  await renderView(<Page />);
  await press("dialog");
  const field = await screen.findByRole<HTMLInputElement>("textbox", { name: "Text" });
  await userEvent.type(field, "long text");
  await userEvent.keyboard("{Escape}");
  expect(await screen.findByText("Discard what you have typed?")).toBeTruthy();
  await userEvent.keyboard("{Escape}");
  expect(screen.queryByText("Discard what you have typed?")).toBeNull();
  expect(field.value).toBe("long text");
  await press("Close");
  await press("Discard");
  await waitFor(() => {
    expect(screen.queryByRole("dialog")).toBeNull();
  });
  await focused("dialog");
});

test("Escape asks nothing if the text is as it was", async () => {
  await renderView(<Page />);
  await press("dialog");
  await userEvent.type(await screen.findByRole("textbox", { name: "Text" }), "x{Backspace}");
  await userEvent.keyboard("{Escape}");
  await waitFor(() => {
    expect(screen.queryByRole("dialog")).toBeNull();
  });
});

test("a panel asks, too; if its page closes it meanwhile, the next panel opens without the question", async () => {
  await renderView(<Page />);
  await press("panel");
  await userEvent.selectOptions(await screen.findByRole("combobox", { name: "Role" }), "operator");
  await press("Close");
  expect(await screen.findByText("Discard what you have typed?")).toBeTruthy();
  fireEvent.click(screen.getByText("close"));
  await waitFor(() => {
    expect(screen.queryByRole("dialog")).toBeNull();
  });
  await press("panel");
  await opened("Panel");
  expect(screen.queryByText("Discard what you have typed?")).toBeNull();
  await userEvent.selectOptions(await screen.findByRole("combobox", { name: "Role" }), "operator");
  await userEvent.keyboard("{Escape}");
  await press("Discard");
  await focused("panel");
});

test("another order of rows is nothing that somebody has typed", async () => {
  await renderView(<Page />);
  await press("panel");
  await userEvent.selectOptions(await screen.findByRole("combobox", { name: "Sort by" }), "n");
  await userEvent.keyboard("{Escape}");
  await focused("panel");
});
