import { useEffect, useState, type ComponentType, type ReactNode } from "react";
import { loadCode } from "@/api/load-code";
import { Loading, PageFrame } from "./page-frame";

const RELOADED = "gantry.reloaded";

type Load<Name extends string> = () => Promise<Record<Name, ComponentType>>;

/**
 * Returns a page whose code is loaded when somebody opens it, or points at a link to it. A gateway that is away is waited
 * for; one of another version, which does not have the code any more, gets the whole console anew.
 */
export function lazyPage<Name extends string>(
  load: Load<Name>,
  name: Name,
): (() => ReactNode) & { preload: () => Promise<void> } {
  let loaded: ComponentType | null = null;
  const keep = (code: Record<Name, ComponentType>) => (loaded = code[name]);
  function LazyPage() {
    const [Page, setPage] = useState(() => loaded);
    const [error, setError] = useState<unknown>(null);
    useEffect(() => {
      if (loaded !== null) return undefined;
      let isLeft = false;
      loadCode(load).then(
        (code) => {
          sessionStorage.removeItem(RELOADED);
          setPage(() => keep(code));
        },
        (reason: unknown) => {
          if (!isLeft && !reloadOnce()) setError(reason);
        },
      );
      return () => {
        isLeft = true;
      };
    }, []);
    if (error !== null) throw error as Error;
    return Page === null ? <PagePending /> : <Page />;
  }
  // The page itself tries again, and says so.
  LazyPage.preload = () =>
    load().then(
      (code) => {
        keep(code);
      },
      () => undefined,
    );
  return LazyPage;
}

/** Loads the address anew, with the console of the gateway that answers now. Returns false if it did so before. */
function reloadOnce(): boolean {
  const { href } = window.location;
  if (sessionStorage.getItem(RELOADED) === href) return false;
  sessionStorage.setItem(RELOADED, href);
  window.location.reload();
  return true;
}

/** A page whose code is on its way. */
export function PagePending() {
  return (
    <PageFrame title="Gantry">
      <Loading />
    </PageFrame>
  );
}
