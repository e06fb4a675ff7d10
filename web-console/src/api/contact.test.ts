// @vitest-environment jsdom
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { isGatewayLost, noteAnswer, onContactChange } from "./contact";
import { request } from "./request";
import { watchGateway } from "./watch-gateway";

let answer: (url: string, signal: AbortSignal) => Promise<Response>;
let asked: string[];
let end: () => void;

/** No answer until the limit of the request ends it. */
const hang = (_: string, signal: AbortSignal) =>
  new Promise<Response>((_resolve, reject) => {
    signal.addEventListener("abort", () => {
      reject(new Error("aborted"));
    });
  });

beforeEach(() => {
  vi.useFakeTimers();
  // The limit of a request is a timer of the browser, which fake timers don't move.
  vi.spyOn(AbortSignal, "timeout").mockImplementation((limitMs) => {
    const controller = new AbortController();
    setTimeout(() => {
      controller.abort();
    }, limitMs);
    return controller.signal;
  });
  asked = [];
  answer = () => Promise.resolve(Response.json({}));
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    asked.push(url);
    return answer(url, init.signal as AbortSignal);
  });
  noteAnswer();
  end = watchGateway();
});

afterEach(() => {
  end();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

test("a gateway that hangs is known as lost within 10 s, without a request of the page", async () => {
  answer = hang;
  await vi.advanceTimersByTimeAsync(10_000);
  expect(isGatewayLost()).toBe(true);
});

test("it is back as soon as it answers, and those who listen hear of both", async () => {
  const heard: boolean[] = [];
  const stop = onContactChange(() => heard.push(isGatewayLost()));
  answer = () => Promise.reject(new TypeError("failed"));
  await vi.advanceTimersByTimeAsync(10_000);
  answer = () => Promise.resolve(Response.json({}));
  await vi.advanceTimersByTimeAsync(2_000);
  expect(heard).toEqual([true, false]);
  stop();
});

test("a page that reads all the time costs no questions", async () => {
  for (let second = 0; second < 20; second += 5) {
    await request("get", "/v1/cluster");
    await vi.advanceTimersByTimeAsync(5_000);
  }
  expect(new Set(asked)).toEqual(new Set(["/v1/cluster"]));
});

test("one slow read does not mean that the gateway is lost", async () => {
  answer = (url, signal) => (url === "/livez" ? Promise.resolve(Response.json({})) : hang(url, signal));
  const slow = request("get", "/v1/cluster").catch((error: unknown) => error);
  await vi.advanceTimersByTimeAsync(16_000);
  expect(await slow).toMatchObject({ isUnreachable: true, message: "no answer within 15 s" });
  expect(isGatewayLost()).toBe(false);
});

test("a proxy that answers for a gateway that is away is no answer", async () => {
  answer = () => Promise.resolve(new Response("<html>", { status: 502 }));
  await vi.advanceTimersByTimeAsync(10_000);
  expect(isGatewayLost()).toBe(true);
});

test("a refusal is an answer, and a hidden tab asks nothing", async () => {
  answer = () => Promise.resolve(Response.json({}, { status: 429 }));
  await vi.advanceTimersByTimeAsync(10_000);
  expect(isGatewayLost()).toBe(false);
  vi.spyOn(document, "visibilityState", "get").mockReturnValue("hidden");
  asked = [];
  await vi.advanceTimersByTimeAsync(60_000);
  expect(asked).toEqual([]);
});
