import { Alert, Button, Drawer, Group, Modal, type DrawerProps, type ModalProps } from "@mantine/core";
import { useRef, useState, type FocusEvent } from "react";
import { useTranslation } from "react-i18next";
import { useOpenDialog } from "./open-dialogs";

type Field = HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;

const valueOf = (field: Field) => (field instanceof HTMLInputElement && field.type === "checkbox" ? "" : field.value);

/**
 * A dialog over the page. It asks before Escape, a click beside it or its cross discards what somebody has typed. The
 * focus returns to the control that opened it.
 */
export function Dialog({ onClose, children, isDisposable = false, ...props }: ModalProps & { isDisposable?: boolean }) {
  const { t } = useTranslation();
  // The content of each field when it got the focus for the first time.
  const fields = useRef(new Map<Field, string>());
  const [isAsking, setAsking] = useState(false);
  const remember = ({ target }: FocusEvent) => {
    const isField = target.matches("input, textarea, select");
    if (isField && !fields.current.has(target as Field)) fields.current.set(target as Field, valueOf(target as Field));
  };
  const close = () => {
    const isTyped = [...fields.current].some(([field, before]) => field.isConnected && valueOf(field) !== before);
    if (isTyped && !isDisposable) setAsking(!isAsking);
    else onClose();
  };
  useOpenDialog(props.opened, props.closeOnEscape === false ? () => undefined : close);
  return (
    <Modal
      {...props}
      onClose={close}
      closeOnEscape={false}
      returnFocus={false}
      closeButtonProps={{ "aria-label": t("close") }}
      onFocusCapture={remember}
    >
      {isAsking && (
        <Alert role="alert" color="orange" variant="light" mb="md" title={t("discard.title")}>
          <Group gap="xs">
            <Button
              size="xs"
              variant="default"
              autoFocus
              onClick={() => {
                setAsking(false);
              }}
            >
              {t("discard.keep")}
            </Button>
            <Button size="xs" color="red" onClick={onClose}>
              {t("discard.submit")}
            </Button>
          </Group>
        </Alert>
      )}
      {children}
    </Modal>
  );
}

/** One thing beside its list. The focus returns to the row that opened it. */
export function Panel(props: Omit<DrawerProps, "position" | "returnFocus" | "closeButtonProps">) {
  const { t } = useTranslation();
  useOpenDialog(props.opened, props.onClose);
  return (
    <Drawer
      {...props}
      position="right"
      returnFocus={false}
      closeOnEscape={false}
      closeButtonProps={{ "aria-label": t("close") }}
    />
  );
}
