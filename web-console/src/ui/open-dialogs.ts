/**
 * The dialogs that are open, the newest last. Escape is for the newest one; Mantine closes all of them. When one closes,
 * the focus goes to the control that opened it, or to what stands where that was, or to the page; Mantine returns it only
 * from dialogs that stay mounted.
 */
import { useEffect, useEffectEvent, useState } from "react";

const FOCUSABLE =
  "a[href], button:not(:disabled), input:not(:disabled), select:not(:disabled), textarea, [tabindex='0']";
const DIALOG = "[role=dialog]";
const MENU = "[role=menu]";

/** An element, and those that it was in: the nearest of them that is still there knows a neighbour. */
type Place = readonly Element[];

/** The action of each open dialog at Escape; null for one that handles the key itself. */
const open: ((() => void) | null)[] = [];
let onPage: Place = [];
let unfollow: () => void = () => undefined;

function placeOf(element: Element | null): Place {
  const place: Element[] = [];
  for (let each = element; each !== null && each !== document.body; each = each.parentElement) place.push(each);
  return place;
}

window.addEventListener("keydown", (event) => {
  // A list that is open within a dialog takes the key for itself.
  const isTaken =
    event.target instanceof Element && event.target.closest("[data-mantine-stop-propagation=true]") !== null;
  if (event.key === "Escape" && !event.isComposing && !isTaken) open.at(-1)?.();
});

/** Remembers the last control of the page itself that had the focus. Returns a function that ends this. */
export function watchFocus(): () => void {
  const remember = ({ target }: FocusEvent) => {
    if (target instanceof Element && target.closest(`${DIALOG}, ${MENU}`) === null) onPage = placeOf(target);
  };
  document.addEventListener("focusin", remember);
  return () => {
    document.removeEventListener("focusin", remember);
  };
}

/** The control that has the focus: for an item of a menu, which is about to close, the control of the menu. */
function opener(): Element | null {
  const active = document.activeElement;
  const menu = active?.closest(MENU)?.getAttribute("aria-labelledby");
  return menu == null ? active : document.getElementById(menu);
}

/** Notes that a dialog is open, and returns the focus when it closes. */
export function useOpenDialog(isOpen: boolean, onEscape: (() => void) | null): void {
  const [wasOpen, setWasOpen] = useState(false);
  const [from, setFrom] = useState<Place>([]);
  if (isOpen !== wasOpen) {
    setWasOpen(isOpen);
    if (isOpen) setFrom(placeOf(opener()));
  }
  const escape = useEffectEvent(() => onEscape?.());
  const hasEscape = onEscape !== null;
  useEffect(() => {
    if (!isOpen) return undefined;
    const mine = hasEscape
      ? () => {
          escape();
        }
      : null;
    open.push(mine);
    return () => {
      open.splice(open.lastIndexOf(mine), 1);
      // After the dialog has gone, and the focus with it.
      requestAnimationFrame(() => {
        giveBack(from);
      });
    };
  }, [isOpen, from, hasEscape]);
}

function giveBack(from: Place): void {
  const active = document.activeElement;
  const isFree = active === null || active === document.body || active.matches(":disabled");
  const isLeft = active?.closest(DIALOG) != null && open.length === 0;
  if (!isFree && !isLeft) return;
  const around = from.find((each) => each.isConnected && each.matches(DIALOG)) ?? null;
  for (const target of [nearest(from), around, nearest(onPage), document.querySelector("main")]) {
    // While another dialog is open, the page behind it gets no focus; a dialog that fades out gets none, either.
    if (target === null || open.length > 0 !== (target.closest(DIALOG) !== null)) continue;
    (target as HTMLElement).focus({ preventScroll: true });
    if (document.activeElement === target) {
      follow(placeOf(target));
      return;
    }
  }
}

/**
 * Gives the focus to the next place if the first one vanishes or is disabled, until somebody moves the focus: a row may be
 * gone only when its list is read again, and a button be disabled while its action runs.
 */
function follow(place: Place): void {
  unfollow();
  const target = place[0];
  const observer = new MutationObserver(() => {
    if (target?.isConnected === true && !target.matches(":disabled")) return;
    unfollow();
    // A dialog that takes its controls with it gives the focus back itself.
    if (!place.some((each) => each.matches(DIALOG) && !each.isConnected)) giveBack(place);
  });
  observer.observe(document.body, { subtree: true, childList: true, attributeFilter: ["disabled"] });
  const ended = new AbortController();
  for (const kind of ["focusin", "pointerdown", "wheel"]) {
    document.addEventListener(kind, unfollow, { signal: ended.signal, passive: true });
  }
  unfollow = () => {
    observer.disconnect();
    ended.abort();
  };
}

/** The element itself if it is still there, or else a control of the nearest part around it that is. */
function nearest(place: Place): Element | null {
  const at = place.findIndex((each) => each.isConnected);
  const found = place[at];
  // Elements that dialogs leave at the end of the body are not a place for the focus.
  if (found === undefined || found.closest(`main, header, nav, ${DIALOG}`) === null) return null;
  // In a table, the row that now stands there is the one that keys reach.
  return at === 0 ? found : (found.querySelector("[tabindex='0']") ?? found.querySelector(FOCUSABLE));
}
