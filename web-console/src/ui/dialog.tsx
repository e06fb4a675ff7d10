import { Alert, Button, Drawer, Group, Modal, type DrawerProps, type ModalProps } from "@mantine/core";
import { useRef, useState, type FocusEvent, type ReactNode } from "react";
import { useTranslation } from "react-i18next";
import { useOpenDialog } from "./open-dialogs";

type Field = HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;

/** Fields that somebody fills in. A field that only changes the view, such as the order of rows, says that it is none. */
const FIELDS = ":is(input, textarea, select):not([data-view])";

const valueOf = (field: Field) => (field instanceof HTMLInputElement && field.type === "checkbox" ? "" : field.value);

/** Asks before what somebody has typed is discarded. `close` is for Escape, the cross, and a click beside the dialog. */
function useDraft(isOpen: boolean, onClose: () => void) {
  // The content of each field when it got the focus for the first time.
  const fields = useRef(new Map<Field, string>());
  const [isAsking, setAsking] = useState(false);
  // The button of the browser closes a panel without a question; the next one must not open with it.
  if (isAsking && !isOpen) setAsking(false);
  return {
    remember: ({ target }: FocusEvent) => {
      const isField = target.matches(FIELDS);
      if (isField && !fields.current.has(target as Field))
        fields.current.set(target as Field, valueOf(target as Field));
    },
    close: () => {
      const isTyped = [...fields.current].some(([field, before]) => field.isConnected && valueOf(field) !== before);
      if (isTyped) setAsking(!isAsking);
      else onClose();
    },
    question: isAsking && (
      <DiscardQuestion
        onKeep={() => {
          setAsking(false);
        }}
        onDiscard={onClose}
      />
    ),
  };
}

function DiscardQuestion({ onKeep, onDiscard }: { onKeep: () => void; onDiscard: () => void }): ReactNode {
  const { t } = useTranslation();
  return (
    <Alert role="alert" color="orange" variant="light" mb="md" title={t("discard.title")}>
      <Group gap="xs">
        <Button size="xs" variant="default" autoFocus onClick={onKeep}>
          {t("discard.keep")}
        </Button>
        <Button size="xs" color="red" onClick={onDiscard}>
          {t("discard.submit")}
        </Button>
      </Group>
    </Alert>
  );
}

/**
 * A dialog over the page. It asks before Escape, a click beside it or its cross discards what somebody has typed. The
 * focus returns to the control that opened it.
 */
export function Dialog({ onClose, children, isDisposable = false, ...props }: ModalProps & { isDisposable?: boolean }) {
  const { t } = useTranslation();
  const draft = useDraft(props.opened, onClose);
  const close = isDisposable ? onClose : draft.close;
  useOpenDialog(props.opened, props.closeOnEscape === false ? () => undefined : close);
  return (
    <Modal
      {...props}
      onClose={close}
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

/** One thing beside its list. It asks like a dialog. The focus returns to the row that opened it. */
export function Panel({
  onClose,
  children,
  ...props
}: Omit<DrawerProps, "position" | "returnFocus" | "closeButtonProps">) {
  const { t } = useTranslation();
  const draft = useDraft(props.opened, onClose);
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
