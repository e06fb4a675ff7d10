import { asApiError } from "./api-error";
import { request } from "./request";

const PAUSE_MS = 1_000;
const ANSWER_MS = 3_500;
/** The first failure may have come just before the gateway did. */
const ATTEMPTS_MAX = 2;

/**
 * Loads a part of the console's code, whatever the gateway does meanwhile: while it gives no answer, this waits for it.
 * Throws the error of `load` if the gateway answers and does not have the code, because it is of another version.
 */
export async function loadCode<T>(load: () => Promise<T>): Promise<T> {
  for (let attempts = 0; ;) {
    try {
      return await load();
    } catch (error) {
      if (await doesAnswer()) attempts += 1;
      if (attempts >= ATTEMPTS_MAX) throw error;
      await new Promise((done) => setTimeout(done, PAUSE_MS));
    }
  }
}

async function doesAnswer(): Promise<boolean> {
  try {
    await request("get", "/livez", { timeoutMs: ANSWER_MS });
    return true;
  } catch (error) {
    return !asApiError(error).isUnreachable;
  }
}
