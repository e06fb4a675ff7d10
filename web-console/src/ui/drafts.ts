/**
 * Dialogs with content that a step through the history of the browser would discard. The newest of them asks first, as at
 * Escape. The browser itself asks before a step that leaves the console, and before the page is loaded again.
 */
import { useRouter, type AnyRouter, type RouterHistory } from "@tanstack/react-router";
import { useEffect, useEffectEvent } from "react";

type BlockerArgs = Parameters<Parameters<RouterHistory["block"]>[0]["blockerFn"]>[0];

interface Draft {
  hasContent: () => boolean;
  /** Asks whether to discard the content; `steps` is the step of the history that waits for the answer. */
  ask: (steps: number) => void;
}

/** The dialogs that are open, the newest last. */
const drafts: Draft[] = [];

const newestDraft = () => drafts.findLast((draft) => draft.hasContent());

/** Blocks steps of the browser. Links and pages that open after an action has ended do not ask. */
function askNewest({ action, currentLocation, nextLocation }: BlockerArgs): boolean {
  if (action === "PUSH" || action === "REPLACE") return false;
  const draft = newestDraft();
  // The router goes back to the entry of the dialog at once, so the address is right while the question is open.
  draft?.ask(nextLocation.state.__TSR_index - currentLocation.state.__TSR_index);
  return draft !== undefined;
}

/**
 * Blocks the steps of the browser while a dialog is open and has content. Returns a function that takes the step that was
 * blocked. A dialog outside the router blocks nothing.
 */
export function useBlockedSteps(isOpen: boolean, { hasContent, ask }: Draft): (steps: number) => void {
  const router = useRouter({ warn: false }) as AnyRouter | null;
  const history: RouterHistory | undefined = router?.history;
  const hasContentNow = useEffectEvent(hasContent);
  const askNow = useEffectEvent(ask);
  useEffect(() => {
    if (!isOpen || history === undefined) return undefined;
    const mine: Draft = {
      hasContent: () => hasContentNow(),
      ask: (steps) => {
        askNow(steps);
      },
    };
    drafts.push(mine);
    const unblock = history.block({ blockerFn: askNewest, enableBeforeUnload: () => newestDraft() !== undefined });
    return () => {
      unblock();
      drafts.splice(drafts.lastIndexOf(mine), 1);
    };
  }, [isOpen, history]);
  return (steps) => {
    history?.go(steps, { ignoreBlocker: true });
  };
}
