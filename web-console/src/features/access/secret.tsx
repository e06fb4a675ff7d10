import { Alert, Button, Code, CopyButton, Group, Stack, Text } from "@mantine/core";
import { IconCheck, IconCopy, IconKey } from "@tabler/icons-react";
import { useTranslation } from "react-i18next";
import type { MadeKey } from "@/api/api-keys";
import { Dialog } from "@/ui/dialog";
import { useFormat } from "@/ui/format";

const ICON_PX = 16;

/** The secret of a new key. Only the button closes this, and a step of the browser asks: no later answer has the secret. */
export function Secret({ made, onClose }: { made: MadeKey; onClose: () => void }) {
  const { t } = useTranslation("access");
  const format = useFormat();
  return (
    <Dialog
      opened
      onClose={onClose}
      title={t("keys.secret.title", { name: made.name })}
      size="lg"
      withCloseButton={false}
      closeOnClickOutside={false}
      closeOnEscape={false}
      loss={t("keys.secret.loss")}
    >
      <Stack>
        <Alert color="orange" variant="light" icon={<IconKey size={ICON_PX} />} title={t("keys.secret.once")}>
          {t("keys.secret.hash")}
        </Alert>
        <Group gap="xs" wrap="nowrap" align="stretch">
          <Code
            block
            style={{ flex: 1, overflowWrap: "anywhere", whiteSpace: "pre-wrap" }}
            aria-label={t("keys.secret.label")}
          >
            {made.key}
          </Code>
          <CopyButton value={made.key}>
            {({ copied, copy }) => (
              <Button
                h="auto"
                variant="default"
                leftSection={copied ? <IconCheck size={ICON_PX} /> : <IconCopy size={ICON_PX} />}
                onClick={copy}
              >
                {t(copied ? "common:copy.done" : "keys.secret.copy")}
              </Button>
            )}
          </CopyButton>
        </Group>
        {made.previous_valid_until !== null && (
          <Text size="sm">{t("keys.secret.previous", { time: format.time(made.previous_valid_until) })}</Text>
        )}
        <Group justify="flex-end">
          <Button onClick={onClose}>{t("keys.secret.close")}</Button>
        </Group>
      </Stack>
    </Dialog>
  );
}
