import { Alert, Button, Drawer, Group, Modal, type DrawerProps, type ModalProps } from "@mantine/core";
import { useRef, useState, type FocusEvent, type ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { useBlockedSteps } from "./drafts";
import { useOpenDialog } from "./open-dialogs";

type Field = HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;

/** Fields that somebody fills in. A field that only changes the view, such as the order of rows, says that it is none. */
const FIELDS = ":is(input, textarea, select):not([data-view])";

const valueOf = (field: Field) => (field instanceof HTMLInputElement && field.type === "checkbox" ? "" : field.value);

interface DraftOptions {
  isOpen: boolean;
  onClose: () => void;
  /** Is called before a step of the browser that discards the content. */
  onLeave?: () => void;
  /** Says what a step of the browser would lose, besides what somebody has typed. */
  loss?: string | undefined;
  isDisposable?: boolean | undefined;
}

/** Cause of a question: Escape, the cross or a click beside the dialog; or a step through the history of the browser. */
type Cause = "close" | { steps: number };

/** Asks before what somebody has typed is discarded. `close` is for Escape, the cross, and a click beside the dialog. */
function useDraft({ isOpen, onClose, onLeave, loss, isDisposable = false }: DraftOptions) {
  // The content of each field when it got the focus for the first time.
  const fields = useRef(new Map<Field, string>());
  const lastField = useRef<Field | null>(null);
  const [cause, setCause] = useState<Cause | null>(null);
  // A panel that its page closes must not open with the question next time.
  if (cause !== null && !isOpen) setCause(null);
  const isTyped = () => [...fields.current].some(([field, before]) => field.isConnected && valueOf(field) !== before);
  const takeStep = useBlockedSteps(isOpen && !isDisposable, {
    hasContent: () => loss !== undefined || isTyped(),
    ask: (steps) => {
      setCause({ steps });
    },
  });
  const keep = () => {
    setCause(null);
    lastField.current?.focus();
  };
  const discard = () => {
    setCause(null);
    if (cause === null || cause === "close") {
      onClose();
      return;
    }
    onLeave?.();
    takeStep(cause.steps);
  };
  return {
    remember: ({ target }: FocusEvent) => {
      if (!target.matches(FIELDS)) return;
      const field = target as Field;
      lastField.current = field;
      if (!fields.current.has(field)) fields.current.set(field, valueOf(field));
    },
    close: () => {
      if (cause !== null) keep();
      else if (isTyped() && !isDisposable) setCause("close");
      else onClose();
    },
    question: cause !== null && <DiscardQuestion loss={loss} onKeep={keep} onDiscard={discard} />,
  };
}

function DiscardQuestion({
  loss,
  onKeep,
  onDiscard,
}: {
  loss: string | undefined;
  onKeep: () => void;
  onDiscard: () => void;
}): ReactNode {
  const { t } = useTranslation();
  return (
    <Alert role="alert" color="orange" variant="light" mb="md" title={loss ?? t("discard.title")}>
      <Group gap="xs">
        <Button size="xs" variant="default" autoFocus onClick={onKeep}>
          {t(loss === undefined ? "discard.keep" : "discard.stay")}
        </Button>
        <Button size="xs" color="red" onClick={onDiscard}>
          {t(loss === undefined ? "discard.submit" : "discard.leave")}
        </Button>
      </Group>
    </Alert>
  );
}

/**
 * A dialog over the page. It asks before Escape, a click beside it, its cross or a step of the browser discards what
 * somebody has typed; with `loss`, each step of the browser asks. The focus returns to the control that opened it.
 */
export function Dialog({
  onClose,
  children,
  loss,
  isDisposable,
  ...props
}: ModalProps & { loss?: string; isDisposable?: boolean }) {
  const { t } = useTranslation();
  // The page of the address before may have the same dialog, so the step does not close it by itself.
  const draft = useDraft({ isOpen: props.opened, onClose, onLeave: onClose, loss, isDisposable });
  useOpenDialog(props.opened, props.closeOnEscape === false ? () => undefined : draft.close);
  return (
    <Modal
      {...props}
      onClose={draft.close}
      closeOnEscape={false}
      returnFocus={false}
      closeButtonProps={{ "aria-label": t("close") }}
      onFocusCapture={draft.remember}
    >
      {draft.question}
      {children}
    </Modal>
  );
}

/**
 * One thing beside its list, which the address names. It asks like a dialog. The focus returns to the row that opened it.
 */
export function Panel({
  onClose,
  children,
  ...props
}: Omit<DrawerProps, "position" | "returnFocus" | "closeButtonProps">) {
  const { t } = useTranslation();
  const draft = useDraft({ isOpen: props.opened, onClose });
  useOpenDialog(props.opened, draft.close);
  return (
    <Drawer
      {...props}
      onClose={draft.close}
      position="right"
      returnFocus={false}
      closeOnEscape={false}
      closeButtonProps={{ "aria-label": t("close") }}
      onFocusCapture={draft.remember}
    >
      {draft.question}
      {children}
    </Drawer>
  );
}
