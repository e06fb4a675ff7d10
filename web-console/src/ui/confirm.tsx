import { List, Stack, Text, TextInput } from "@mantine/core";
import { createContext, use, useCallback, useEffect, useEffectEvent, useState, type ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { Dialog } from "./dialog";
import type { Copyable } from "./copy-as";
import { FormEnd } from "./form-end";

export interface Confirmation {
  title: string;
  /** What will happen, one sentence each, with names and numbers. */
  effects: string[];
  /** Label of the button: the verb of the action. */
  action: string;
  isDangerous?: boolean;
  /** The same action as commands. */
  copy?: Copyable;
  /** A name that has to be typed; for what can't be undone. */
  typed?: string;
}

type Ask = (confirmation: Confirmation) => Promise<boolean>;

const Context = createContext<Ask | null>(null);

/** Returns a function that asks before an action; it resolves to whether the reader agreed. */
export function useConfirm(): Ask {
  const ask = use(Context);
  if (ask === null) throw new Error("useConfirm needs a ConfirmProvider");
  return ask;
}

export function ConfirmProvider({ children }: { children: ReactNode }) {
  const [open, setOpen] = useState<{ confirmation: Confirmation; answer: (agreed: boolean) => void } | null>(null);
  const ask = useCallback<Ask>(
    (confirmation) =>
      new Promise((resolve) => {
        setOpen({
          confirmation,
          answer: (agreed) => {
            setOpen(null);
            resolve(agreed);
          },
        });
      }),
    [],
  );
  return (
    <Context value={ask}>
      {children}
      {open !== null && <Question confirmation={open.confirmation} answer={open.answer} />}
    </Context>
  );
}

function Question({ confirmation, answer }: { confirmation: Confirmation; answer: (agreed: boolean) => void }) {
  const { t } = useTranslation();
  const [typed, setTyped] = useState("");
  const isReady = confirmation.typed === undefined || typed === confirmation.typed;
  // The question belongs to the page that asked. A step of the browser leaves that page, or closes its panel.
  const refuse = useEffectEvent(() => {
    answer(false);
  });
  useEffect(() => {
    const onStep = () => {
      refuse();
    };
    window.addEventListener("popstate", onStep);
    return () => {
      window.removeEventListener("popstate", onStep);
    };
  }, []);
  return (
    <Dialog
      opened
      isDisposable
      onClose={() => {
        answer(false);
      }}
      title={confirmation.title}
    >
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (isReady) answer(true);
        }}
      >
        <Stack>
          <Text size="sm">{t("confirm.effects")}</Text>
          <List size="sm" spacing={4} styles={{ item: { overflowWrap: "anywhere" } }}>
            {confirmation.effects.map((effect) => (
              <List.Item key={effect}>{effect}</List.Item>
            ))}
          </List>
          {confirmation.typed !== undefined && (
            <TextInput
              label={t("confirm.type", { name: confirmation.typed })}
              value={typed}
              data-autofocus
              autoComplete="off"
              onChange={(event) => {
                setTyped(event.currentTarget.value);
              }}
            />
          )}
          <FormEnd
            copy={confirmation.copy}
            onBack={() => {
              answer(false);
            }}
            submit={{ label: confirmation.action, isReady, isDangerous: confirmation.isDangerous }}
          />
        </Stack>
      </form>
    </Dialog>
  );
}
