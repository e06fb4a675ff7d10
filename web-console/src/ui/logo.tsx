import { Group, Text } from "@mantine/core";

const SIZE_PX = 26;

export function Logo() {
  return (
    <Group gap={8} wrap="nowrap">
      <img src={`${import.meta.env.BASE_URL}icon.svg`} width={SIZE_PX} height={SIZE_PX} alt="" />
      <Text fw={700} fz="md" lh={1}>
        Gantry
      </Text>
    </Group>
  );
}
