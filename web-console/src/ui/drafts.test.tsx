// @vitest-environment jsdom
import { TextInput } from "@mantine/core";
import { createBrowserHistory, type RouterHistory } from "@tanstack/react-router";
import { act, fireEvent, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { useState } from "react";
import { afterEach, beforeEach, expect, test } from "vitest";
import { renderView } from "@/testing/render";
import { useConfirm } from "./confirm";
import { Dialog, Panel } from "./dialog";
import { useUrlState } from "./url-state";

const QUESTION = "Discard what you have typed?";
const LOSS = "Leave? The secret is lost.";

/** A list with a panel that its address names, and dialogs over the page and over the panel. */
function Page() {
  const [{ q, item }, change] = useUrlState({ q: "", item: "" });
  const [dialog, setDialog] = useState<"new" | "secret" | null>(null);
  const confirm = useConfirm();
  const close = () => {
    setDialog(null);
  };
  const button = (name: string, run: () => void) => <button onClick={run}>{name}</button>;
  return (
    <main tabIndex={-1}>
      <p>{`q=${q} item=${item}`}</p>
      {button("search", () => {
        change({ q: "x" }, { push: true });
      })}
      {button("open", () => {
        change({ item: "1" }, { panel: "open" });
      })}
      {button("create", () => {
        setDialog("new");
      })}
      {button("rotate", () => {
        setDialog("secret");
      })}
      <Panel
        opened={item !== ""}
        onClose={() => {
          change({ item: "" }, { panel: "close" });
        }}
        title="Panel"
      >
        <TextInput label="Name" data-autofocus />
        {button("edit", () => {
          setDialog("new");
        })}
        {button("deleted", () => {
          change({ item: "" }, { panel: "close" });
        })}
        {button("delete", () => void confirm({ title: "Sure?", effects: ["it goes"], action: "Do it" }))}
      </Panel>
      {dialog === "new" && (
        <Dialog opened onClose={close} title="Dialog">
          <TextInput label="Text" data-autofocus />
        </Dialog>
      )}
      {dialog === "secret" && (
        <Dialog opened onClose={close} title="Secret" closeOnEscape={false} withCloseButton={false} loss={LOSS}>
          <button onClick={close}>stored</button>
        </Dialog>
      )}
    </main>
  );
}

let history: RouterHistory;
beforeEach(() => {
  window.history.pushState(null, "", "/list");
  history = createBrowserHistory();
});
afterEach(() => {
  history.destroy();
});

const open = () => renderView(<Page />, { path: "/list", history });
const press = (name: string) => userEvent.click(screen.getByRole("button", { name }));
const shows = (text: string) => waitFor(() => screen.getByText(text));
const gone = (text: string) =>
  waitFor(() => {
    expect(screen.queryByText(text)).toBeNull();
  });
const step = async (steps = -1) => {
  await act(async () => {
    const taken = new Promise((done) => {
      window.addEventListener("popstate", done, { once: true });
    });
    window.history.go(steps);
    await taken;
  });
};
const type = async (label: string) => {
  const field = await screen.findByRole<HTMLInputElement>("textbox", { name: label });
  await userEvent.type(field, "typed");
  return field;
};
const addressIs = (address: string) =>
  waitFor(() => {
    expect(window.location.pathname + window.location.search).toBe(address);
  });
/** Whether the browser would ask before it leaves the console. */
const asksBeforeUnload = () => !window.dispatchEvent(new Event("beforeunload", { cancelable: true }));

async function typedPanel() {
  await open();
  await press("search");
  await shows("q=x item=");
  await press("open");
  return type("Name");
}

test("a step back asks before a panel discards what was typed; the panel and the history stay", async () => {
  const field = await typedPanel();
  expect(asksBeforeUnload()).toBe(true);
  await step();
  await shows(QUESTION);
  await addressIs("/list?q=x&item=1");
  // The next step asks again, and does not leave.
  await step();
  await addressIs("/list?q=x&item=1");
  await press("Go on typing");
  await gone(QUESTION);
  expect(field.isConnected).toBe(true);
  expect(field.value).toBe("typed");
  expect(document.activeElement).toBe(field);
  await addressIs("/list?q=x&item=1");
  await step();
  await shows(QUESTION);
  await press("Discard");
  await shows("q=x item=");
  await addressIs("/list?q=x");
  expect(asksBeforeUnload()).toBe(false);
  await step();
  await shows("q= item=");
  await addressIs("/list");
  await step(2);
  await shows("q=x item=1");
  expect(screen.queryByText(QUESTION)).toBeNull();
});

test("a step of several entries is taken whole after the question", async () => {
  await typedPanel();
  await step(-2);
  await shows(QUESTION);
  await addressIs("/list?q=x&item=1");
  await press("Discard");
  await shows("q= item=");
  await addressIs("/list");
});

test("a step asks nothing without a text, and the panel that asked before it closed asks once", async () => {
  await open();
  await press("open");
  await shows("q= item=1");
  expect(asksBeforeUnload()).toBe(false);
  await step();
  await shows("q= item=");
  await press("open");
  await type("Name");
  await press("Close");
  await shows(QUESTION);
  await press("Discard");
  await shows("q= item=");
  await addressIs("/list");
});

test("a panel whose thing is deleted closes without a question", async () => {
  await typedPanel();
  fireEvent.click(screen.getByText("deleted"));
  await shows("q=x item=");
  await addressIs("/list?q=x");
  expect(screen.queryByText(QUESTION)).toBeNull();
});

test("the newest dialog with a text asks; to discard takes the step", async () => {
  await typedPanel();
  await press("edit");
  const field = await type("Text");
  await step();
  await shows(QUESTION);
  expect(screen.getAllByText(QUESTION).length).toBe(1);
  expect(screen.getByText(QUESTION).closest("[role=dialog]")?.contains(field)).toBe(true);
  await press("Discard");
  await shows("q=x item=");
  await addressIs("/list?q=x");
  await waitFor(() => {
    expect(screen.queryByRole("dialog")).toBeNull();
  });
});

test("a dialog over the page asks, and is gone on the page of the step", async () => {
  await open();
  await press("search");
  await shows("q=x item=");
  await press("create");
  await type("Text");
  await step();
  await shows(QUESTION);
  await addressIs("/list?q=x");
  await press("Discard");
  await shows("q= item=");
  await waitFor(() => {
    expect(screen.queryByRole("dialog")).toBeNull();
  });
});

test("a dialog whose content can't be shown again asks at each step, in its own words", async () => {
  await open();
  await press("search");
  await shows("q=x item=");
  await press("rotate");
  await screen.findByRole("dialog", { name: "Secret" });
  expect(asksBeforeUnload()).toBe(true);
  await step();
  await shows(LOSS);
  await press("Stay");
  await gone(LOSS);
  await addressIs("/list?q=x");
  await press("stored");
  await waitFor(() => {
    expect(screen.queryByRole("dialog")).toBeNull();
  });
  expect(asksBeforeUnload()).toBe(false);
});

test("a step closes the question of an action, whose page it leaves", async () => {
  await open();
  await press("open");
  await screen.findByRole("dialog", { name: "Panel" });
  await press("delete");
  await screen.findByRole("dialog", { name: "Sure?" });
  await step();
  await shows("q= item=");
  await waitFor(() => {
    expect(screen.queryByRole("dialog")).toBeNull();
  });
});
