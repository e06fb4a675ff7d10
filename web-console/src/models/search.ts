/** Returns the items whose name contains all words of a search, without regard to case. */
export function searchNames<T>(items: readonly T[], search: string, nameOf: (item: T) => string): readonly T[] {
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return items;
  return items.filter((item) => {
    const name = nameOf(item).toLowerCase();
    return words.every((word) => name.includes(word));
  });
}
