import { Button, Group } from "@mantine/core";
import type { ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { CopyAs, type Copyable } from "./copy-as";

/** A button at the end of a form. */
interface End {
  label: string;
  isReady?: boolean;
}

/**
 * The end of a form: the action as commands where there are some, a button that leaves the form, and one that sends it.
 * `children` are actions beyond that, such as the one whose preview the form sends.
 */
export function FormEnd({
  copy,
  back,
  onBack,
  submit,
  children,
}: {
  copy?: (Copyable & { label?: string }) | undefined;
  /** "Cancel" by default. */
  back?: End;
  onBack: () => void;
  submit: End & {
    isBusy?: boolean;
    isDangerous?: boolean | undefined;
    /** Another button is the main one. */
    isSecond?: boolean;
    /** Does it without a form around. */
    onClick?: () => void;
  };
  children?: ReactNode;
}) {
  const { t } = useTranslation();
  return (
    <Group justify={copy === undefined ? "flex-end" : "space-between"}>
      {copy !== undefined && <CopyAs {...copy} />}
      <Group>
        <Button variant="default" disabled={back?.isReady === false} onClick={onBack}>
          {back?.label ?? t("common:cancel")}
        </Button>
        <Button
          variant={submit.isSecond ? "default" : "filled"}
          color={submit.isDangerous ? "red" : "teal"}
          disabled={submit.isReady === false}
          loading={submit.isBusy ?? false}
          {...(submit.onClick === undefined ? { type: "submit" as const } : { onClick: submit.onClick })}
        >
          {submit.label}
        </Button>
        {children}
      </Group>
    </Group>
  );
}
