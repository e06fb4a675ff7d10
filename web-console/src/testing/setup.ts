import { afterEach } from "vitest";

// Tests of views say `// @vitest-environment jsdom` in their first line; the others run without a document.
if (typeof document !== "undefined") {
  const { cleanup } = await import("@testing-library/react");
  afterEach(cleanup);

  // jsdom lays nothing out and has no media queries; Mantine asks for both.
  Object.defineProperty(globalThis, "matchMedia", {
    writable: true,
    value: (query: string) => ({
      matches: false,
      media: query,
      addListener: () => undefined,
      removeListener: () => undefined,
      addEventListener: () => undefined,
      removeEventListener: () => undefined,
      dispatchEvent: () => false,
      onchange: null,
    }),
  });
  const nothing = () => undefined;
  globalThis.ResizeObserver ??= class {
    observe = nothing;
    unobserve = nothing;
    disconnect = nothing;
  };
  Element.prototype.scrollIntoView = nothing;
  window.scrollTo = nothing;
  Object.defineProperty(document, "fonts", { value: new EventTarget() });
  // The virtualised table shows as many rows as fit: 17 of 41 px in 700 px.
  Object.defineProperties(HTMLElement.prototype, {
    clientWidth: { get: () => 1_000 },
    clientHeight: { get: () => 700 },
    offsetHeight: {
      get(this: HTMLElement) {
        return this.dataset.index === undefined ? 700 : 41;
      },
    },
  });
}
