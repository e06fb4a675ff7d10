const WIDTH = 600;
const HEIGHT = 64;

/** A small chart of several lines without axes. Gaps stand for unknown values. `label` says what it shows, in words. */
export function Sparkline({ label, lines }: { label: string; lines: { color: string; values: (number | null)[] }[] }) {
  const top = Math.max(1e-9, ...lines.flatMap((line) => line.values.map((value) => value ?? 0)));
  return (
    <svg
      role="img"
      aria-label={label}
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      style={{ width: "100%", height: HEIGHT, display: "block" }}
    >
      {lines.map((line) => (
        <path
          key={line.color}
          d={pathOf(line.values, top)}
          fill="none"
          stroke={line.color}
          strokeWidth={1.75}
          vectorEffect="non-scaling-stroke"
          strokeLinejoin="round"
        />
      ))}
    </svg>
  );
}

/** Returns the path of a line; it is broken where a value is unknown. */
export function pathOf(values: readonly (number | null)[], top: number): string {
  const step = values.length > 1 ? WIDTH / (values.length - 1) : 0;
  let isDrawing = false;
  return values
    .flatMap((value, index) => {
      if (value === null) {
        isDrawing = false;
        return [];
      }
      const command = isDrawing ? "L" : "M";
      isDrawing = true;
      return [`${command}${(index * step).toFixed(1)} ${(HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)}`];
    })
    .join("");
}
