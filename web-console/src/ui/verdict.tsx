import { Badge } from "@mantine/core";
import { colorOf } from "@/models/lag";

/** A verdict as it is called everywhere; its colour only repeats the word. */
export function Verdict({ verdict }: { verdict: string }) {
  return (
    <Badge color={colorOf(verdict)} variant="light" radius="sm" tt="none" autoContrast>
      {verdict}
    </Badge>
  );
}
