const files = import.meta.glob<Record<string, unknown>>("./zh/*.json", { eager: true, import: "default" });

/** Texts by namespace, which is the name of the file. */
export const texts = Object.fromEntries(
  Object.entries(files).map(([path, content]) => [path.slice("./zh/".length, -".json".length), content]),
);
