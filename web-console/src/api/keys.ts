/** Keys of cached answers. Each resource has one factory, so that a change can drop all answers about it. */
export function makeKeys<R extends string>(resource: R) {
  return {
    all: [resource] as const,
    list: (parameters: Record<string, unknown> = {}) => [resource, "list", parameters] as const,
    detail: (name: string) => [resource, "detail", name] as const,
    part: (name: string, part: string, parameters: Record<string, unknown> = {}) =>
      [resource, "detail", name, part, parameters] as const,
  };
}
