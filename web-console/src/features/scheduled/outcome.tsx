import { Alert, Text } from "@mantine/core";
import { useTranslation } from "react-i18next";
import { Name, TimeAndDistance } from "@/ui/value";

/** How an action on a message ended. `deliverAt` is there for a message that waits on. */
export interface Outcome {
  kind: "recalled" | "gone" | "moved" | "delivered";
  messageId: string;
  deliverAt: string | null;
}

/** Says how an action ended, until the reader closes it. */
export function OutcomeAlert({ outcome, onClose }: { outcome: Outcome; onClose: () => void }) {
  const { t } = useTranslation("scheduled");
  return (
    <Alert
      role="status"
      variant="light"
      color={outcome.kind === "gone" ? "orange" : "green"}
      title={t(`outcome.${outcome.kind}.title`)}
      withCloseButton
      closeButtonLabel={t("common:close")}
      onClose={onClose}
    >
      <Text size="sm" style={{ overflowWrap: "anywhere" }}>
        <Name>{outcome.messageId}</Name> · {t(`outcome.${outcome.kind}.detail`)}
        {outcome.deliverAt !== null && (
          <>
            {" "}
            <TimeAndDistance time={outcome.deliverAt} />
          </>
        )}
      </Text>
    </Alert>
  );
}
