import { afterEach, expect, test, vi } from "vitest";
import { ApiError } from "./api-error";
import { operationsOf } from "./operations";
import { fillPath, onSessionLost, request, setCsrf } from "./request";

function answerWith(status: number, body: unknown, headers: Record<string, string> = {}) {
  const sent: Request[] = [];
  vi.stubGlobal("fetch", (url: string, init: RequestInit) => {
    sent.push(
      new Request(new URL(url, "http://gateway"), { method: init.method, headers: init.headers } as RequestInit),
    );
    const text = body === undefined ? null : typeof body === "string" ? body : JSON.stringify(body);
    return Promise.resolve(new Response(text, { status, headers }));
  });
  return sent;
}

const problem = (type: string, status: number) => ({
  type: `https://gantry.dev/problems/${type}`,
  title: "T",
  status,
  detail: "topic: T is unknown",
  retryable: false,
  request_id: "r1",
});
const PROBLEM = { "content-type": "application/problem+json" };

afterEach(() => {
  setCsrf(null);
  vi.unstubAllGlobals();
});

test("names in paths are encoded, and empty query values are left out", () => {
  expect(fillPath("/v1/topics/{topic}/queues", { topic: "a/b%c ü" })).toBe("/v1/topics/a%2Fb%25c%20%C3%BC/queues");
  expect(fillPath("/v1/topics", {}, { limit: 5, cursor: null, q: "", system: false })).toBe(
    "/v1/topics?limit=5&system=false",
  );
});

test("a problem becomes an ApiError with its kind", async () => {
  answerWith(404, problem("unknown-topic", 404), PROBLEM);
  const error = await request("get", "/v1/topics/{topic}", { path: { topic: "T" } }).catch((e: unknown) => e);
  expect(error).toBeInstanceOf(ApiError);
  expect(error).toMatchObject({
    status: 404,
    kind: "unknown-topic",
    message: "topic: T is unknown",
    isRetryable: false,
  });
});

test("an answer of something in between is an error without a problem", async () => {
  answerWith(502, "<html>Bad gateway</html>", { "content-type": "text/html" });
  const error = await request("get", "/v1/cluster").catch((e: unknown) => e);
  expect(error).toMatchObject({ status: 502, problem: null, isRetryable: true });
});

test("a gateway that can't be reached is told apart from one that refuses", async () => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("failed")));
  const error = await request("get", "/v1/cluster").catch((e: unknown) => e);
  expect(error).toMatchObject({ isUnreachable: true, isRetryable: true });
});

test("a change without an answer is in doubt; a read and a refusal are not", async () => {
  const drain = () => request("post", "/v1/brokers/{broker}:drain", { path: { broker: "a" } }).catch((e: unknown) => e);
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("failed")));
  expect(await drain()).toMatchObject({ isInDoubt: true });
  expect(await request("get", "/v1/cluster").catch((e: unknown) => e)).toMatchObject({ isInDoubt: false });
  answerWith(504, "<html>", { "content-type": "text/html" });
  expect(await drain()).toMatchObject({ isInDoubt: true });
  answerWith(504, problem("broker-timeout", 504), PROBLEM);
  expect(await drain()).toMatchObject({ isInDoubt: true });
  answerWith(503, { ...problem("broker-unavailable", 503), outcome: "unknown" }, PROBLEM);
  expect(await drain()).toMatchObject({ isInDoubt: true });
  answerWith(503, problem("broker-unavailable", 503), PROBLEM);
  expect(await drain()).toMatchObject({ isInDoubt: false });
  answerWith(404, "<html>", { "content-type": "text/html" });
  expect(await drain()).toMatchObject({ isInDoubt: false });
});

test("only changes carry the CSRF token", async () => {
  const sent = answerWith(204, undefined);
  setCsrf("token");
  await request("delete", "/v1/session");
  expect(sent[0]?.headers.get("x-csrf-token")).toBe("token");
  const read = answerWith(200, {});
  await request("get", "/v1/session");
  expect(read[0]?.headers.get("x-csrf-token")).toBeNull();
});

test("a lost session is reported, a wrong password is not", async () => {
  let lost = 0;
  const end = onSessionLost(() => (lost += 1));
  answerWith(401, problem("unauthenticated", 401), PROBLEM);
  await request("get", "/v1/topics").catch(() => null);
  expect(lost).toBe(1);
  answerWith(401, problem("unauthenticated", 401), PROBLEM);
  await request("post", "/v1/session", { body: { user: "a", password: "b" } }).catch(() => null);
  expect(lost).toBe(1);
  end();
});

test("the operations of a contract are named by method and path", () => {
  const found = operationsOf({
    paths: { "/v1/topics": { get: {}, parameters: [] }, "/v1/keys": { post: {}, get: {} } },
  });
  expect([...found].sort()).toEqual(["GET /v1/keys", "GET /v1/topics", "POST /v1/keys"]);
});
