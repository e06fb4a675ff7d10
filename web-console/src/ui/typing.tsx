import { Autocomplete, TextInput, type AutocompleteProps, type TextInputProps } from "@mantine/core";
import { IconSearch } from "@tabler/icons-react";
import { startTransition, useEffect, useEffectEvent, useState } from "react";

const TYPING_MS = 300;
const ICON_PX = 16;

/** A text that somebody types and that the address of the page keeps. */
export interface Typed {
  /** The text, new with each key. */
  text: string;
  /** Takes the text of the field after a key. */
  type: (text: string) => void;
  /** Puts the text of the field into the address at once. */
  keep: (text: string) => void;
  /** Changes when the text comes from the address, such as that of a link, and not from the field. */
  origin: number;
}

/**
 * Returns the text of a field that the address of the page keeps. A key changes the text at once; the address follows
 * when the typing pauses, because a new address draws the page and all its links again.
 */
export function useTyped(address: string, onKeep: (text: string) => void): Typed {
  const [text, setText] = useState(address);
  const [known, setKnown] = useState(address);
  const [kept, setKept] = useState(address);
  const [origin, setOrigin] = useState(0);
  if (address !== known) {
    setKnown(address);
    if (address !== kept) {
      setKept(address);
      setText(address);
      setOrigin(origin + 1);
    }
  }
  const keep = (now: string) => {
    if (now === kept) return;
    setKept(now);
    onKeep(now);
  };
  const onPause = useEffectEvent(keep);
  useEffect(() => {
    const timer = setTimeout(() => {
      onPause(text);
    }, TYPING_MS);
    return () => {
      clearTimeout(timer);
    };
  }, [text]);
  return { text, type: setText, keep, origin };
}

type FieldProps = Omit<TextInputProps, "value" | "defaultValue" | "onChange" | "onBlur" | "onKeyDown">;

/**
 * The field of a typed text. The browser holds what is in it, so a key never waits for the page: rows are drawn in a
 * transition, which the next key interrupts.
 */
export function TypedField({ typed, ...props }: FieldProps & { typed: Typed }) {
  return (
    <TextInput
      {...props}
      key={typed.origin}
      defaultValue={typed.text}
      onChange={(event) => {
        const { value } = event.currentTarget;
        startTransition(() => {
          typed.type(value);
        });
      }}
      onBlur={(event) => {
        typed.keep(event.currentTarget.value);
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter") typed.keep(event.currentTarget.value);
      }}
    />
  );
}

/** The search of a list. Its name is its placeholder, too. */
export function SearchField({ label, ...props }: Omit<FieldProps, "label"> & { label: string; typed: Typed }) {
  return (
    <TypedField
      aria-label={label}
      placeholder={label}
      leftSection={<IconSearch size={ICON_PX} />}
      maw={360}
      style={{ flex: "1 1 12rem" }}
      autoComplete="off"
      {...props}
    />
  );
}

/** A field whose text belongs to the address: `onKeep` gets it when the typing pauses. */
export function AddressField({
  value,
  onKeep,
  ...props
}: FieldProps & { value: string; onKeep: (text: string) => void }) {
  return <TypedField {...props} typed={useTyped(value, onKeep)} />;
}

type NamesProps = Omit<
  AutocompleteProps,
  "value" | "defaultValue" | "onChange" | "onBlur" | "onKeyDown" | "onOptionSubmit"
>;

/** As above, with names to choose from. A chosen one is in the address at once. */
export function AddressNames({
  value,
  onKeep,
  ...props
}: NamesProps & { value: string; onKeep: (text: string) => void }) {
  const typed = useTyped(value, onKeep);
  return (
    <Autocomplete
      {...props}
      value={typed.text}
      onChange={typed.type}
      onOptionSubmit={typed.keep}
      onBlur={() => {
        typed.keep(typed.text);
      }}
      onKeyDown={(event) => {
        if (event.key === "Enter") typed.keep(typed.text);
      }}
    />
  );
}
