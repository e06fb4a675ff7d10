import { vi } from "vitest";
import type { OperationName } from "@/api/operations";

export interface SentCall {
  method: string;
  path: string;
  query: Record<string, string>;
  headers: Headers;
  body: unknown;
}

export interface FakeAnswer {
  status?: number;
  json?: unknown;
  headers?: Record<string, string>;
}

type Answers = Record<OperationName, FakeAnswer | ((call: SentCall) => FakeAnswer)>;

/**
 * Answers requests of the console for a test, by operation of the contract, such as `GET /v1/topics/{topic}`. Other
 * operations fail the request. Returns the calls that were sent, in order.
 */
export function stubGateway(answers: Answers): SentCall[] {
  const sent: SentCall[] = [];
  const routes = Object.entries(answers).map(([operation, answer]) => {
    const [method = "", template = ""] = operation.split(" ");
    const pattern = template.replace(/[.*+?^$()|[\]\\]/g, "\\$&").replace(/\{\w+\}/g, "[^/:]+");
    return { method, pattern: new RegExp(`^${pattern}$`), answer };
  });
  vi.stubGlobal("fetch", (address: string, init: RequestInit) => {
    const url = new URL(address, "http://gateway");
    const call: SentCall = {
      method: init.method ?? "GET",
      path: url.pathname,
      query: Object.fromEntries(url.searchParams),
      headers: new Headers(init.headers),
      body: typeof init.body === "string" ? (JSON.parse(init.body) as unknown) : undefined,
    };
    sent.push(call);
    const route = routes.find((each) => each.method === call.method && each.pattern.test(call.path));
    if (route === undefined) return Promise.reject(new TypeError(`the test answers no ${call.method} ${call.path}`));
    const answer = typeof route.answer === "function" ? route.answer(call) : route.answer;
    const status = answer.status ?? 200;
    const type = status >= 400 ? "application/problem+json" : "application/json";
    const body = status === 204 ? null : JSON.stringify(answer.json ?? {});
    return Promise.resolve(new Response(body, { status, headers: { "content-type": type, ...answer.headers } }));
  });
  return sent;
}

/** Returns the answer of a refused request. */
export function refused(kind: string, status: number, detail = `${kind}: refused`): FakeAnswer {
  const type = `https://gantry.dev/problems/${kind}`;
  return { status, json: { type, title: kind, status, detail, retryable: status >= 500, request_id: "r-1" } };
}
