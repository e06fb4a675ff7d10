import { contactNow, noteLoss } from "./contact";
import { request } from "./request";

const TICK_MS = 500;
/** A page that reads every 5 s costs no questions beyond its own. */
const SILENCE_MS = 5_500;
/** Who answers no question that needs no work within this time answers nothing at all. */
const ANSWER_MS = 3_500;
const LOST_EVERY_MS = 1_000;

/**
 * Asks the gateway whether it is alive when it has said nothing for some seconds, or when a request got no answer; and
 * while it is lost, until it is back. A hidden tab asks nothing. Returns a function that ends this.
 */
export function watchGateway(): () => void {
  let isAsking = false;
  let askedAtMs = -Infinity;
  const ask = async () => {
    isAsking = true;
    askedAtMs = performance.now();
    try {
      await request("get", "/livez", { timeoutMs: ANSWER_MS });
    } catch {
      // Any answer has been noted, also one that this can't read.
      if (contactNow().answeredAtMs < askedAtMs) noteLoss();
    } finally {
      isAsking = false;
    }
  };
  const timer = setInterval(() => {
    if (isAsking || document.visibilityState === "hidden") return;
    const { isLost, isDoubtful, answeredAtMs } = contactNow();
    const nowMs = performance.now();
    const isDue = isLost || isDoubtful ? nowMs - askedAtMs >= LOST_EVERY_MS : nowMs - answeredAtMs >= SILENCE_MS;
    if (isDue) void ask();
  }, TICK_MS);
  return () => {
    clearInterval(timer);
  };
}
