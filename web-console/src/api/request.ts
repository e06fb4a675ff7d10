/**
 * The one function that calls the gateway. It adds the session's CSRF token, turns every failure into an ApiError, and
 * reports a lost session.
 */
import { ApiError } from "./api-error";
import { noteAnswer, noteSilence } from "./contact";
import type { Answer, BodyOf, Method, PathOf, PathValues, Schema } from "./types";

/** The gateway's slowest reads end within 10 s. */
const READ_TIMEOUT_MS = 15_000;
const CHANGE_TIMEOUT_MS = 35_000;
/** What a proxy says for a gateway that does not answer it. */
const GATEWAY_AWAY: readonly number[] = [502, 503, 504];

type Value = string | number | boolean | null | undefined;

export interface RequestOptions<P extends string, Body> {
  path?: PathValues<P>;
  query?: Record<string, Value>;
  body?: Body;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  /** How long to wait for the answer; 15 s for reads and 35 s for changes by default. */
  timeoutMs?: number;
}

export interface Reply<T> {
  data: T;
  etag: string | null;
}

let csrf: string | null = null;
const lostListeners = new Set<() => void>();

/** Remembers the CSRF token of the session; null after its end. */
export function setCsrf(token: string | null): void {
  csrf = token;
}

/** Calls `listener` whenever the gateway says that there is no session. Returns a function that ends this. */
export function onSessionLost(listener: () => void): () => void {
  lostListeners.add(listener);
  return () => lostListeners.delete(listener);
}

/** Returns a path of the contract with its parameters filled in and encoded. */
export function fillPath(
  template: string,
  values: Record<string, string> = {},
  query: Record<string, Value> = {},
): string {
  const path = template.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(values[name] ?? ""));
  const given = Object.entries(query).flatMap(([name, value]): [string, string][] =>
    value === undefined || value === null || value === "" ? [] : [[name, String(value)]],
  );
  return given.length === 0 ? path : `${path}?${new URLSearchParams(given).toString()}`;
}

/** Calls an operation of the contract and returns the body of its answer with its ETag. Throws ApiError. */
export async function request<M extends Method, P extends PathOf<M> & string>(
  method: M,
  path: P,
  options: RequestOptions<P, BodyOf<P, M>> = {},
): Promise<Reply<Answer<P, M>>> {
  const url = fillPath(path, options.path as Record<string, string> | undefined, options.query);
  const response = await send(method, url, options);
  if (!response.ok) {
    const error = await errorOf(response, isChange(method));
    // A refused log-in has the same type, but there was no session to lose.
    if (error.kind === "unauthenticated" && path !== "/v1/session") {
      setCsrf(null);
      lostListeners.forEach((listener) => {
        listener();
      });
    }
    throw error;
  }
  const data = response.status === 204 ? undefined : ((await readJson(response)) as unknown);
  return { data: data as Answer<P, M>, etag: response.headers.get("etag") };
}

async function send(method: Method, url: string, options: RequestOptions<string, unknown>): Promise<Response> {
  const headers = new Headers({ accept: "application/json", ...options.headers });
  if (options.body !== undefined) {
    headers.set("content-type", "application/json");
  }
  if (isChange(method) && csrf !== null) {
    headers.set("x-csrf-token", csrf);
  }
  const timeoutMs = options.timeoutMs ?? (isChange(method) ? CHANGE_TIMEOUT_MS : READ_TIMEOUT_MS);
  const timeout = AbortSignal.timeout(timeoutMs);
  const beganAtMs = performance.now();
  const init: RequestInit = {
    method: method.toUpperCase(),
    headers,
    credentials: "same-origin",
    signal: options.signal === undefined ? timeout : AbortSignal.any([options.signal, timeout]),
  };
  if (options.body !== undefined) {
    init.body = JSON.stringify(options.body);
  }
  try {
    const response = await fetch(url, init);
    if (GATEWAY_AWAY.includes(response.status) && !isProblem(response)) noteSilence(beganAtMs);
    else noteAnswer();
    return response;
  } catch (error) {
    if (options.signal?.aborted) {
      throw error;
    }
    noteSilence(beganAtMs);
    const reason = timeout.aborted ? `no answer within ${timeoutMs / 1_000} s` : "no answer";
    throw new ApiError(0, null, reason, null, isChange(method));
  }
}

function isChange(method: Method): boolean {
  return method !== "get";
}

function isProblem(response: Response): boolean {
  return response.headers.get("content-type")?.startsWith("application/problem+json") ?? false;
}

async function readJson(response: Response): Promise<unknown> {
  try {
    return await response.json();
  } catch {
    throw new ApiError(response.status, null, "the answer is not JSON");
  }
}

async function errorOf(response: Response, isOfChange: boolean): Promise<ApiError> {
  const problem = isProblem(response) ? ((await readJson(response)) as Schema<"Problem">) : null;
  return new ApiError(
    response.status,
    problem,
    problem?.detail ?? `HTTP ${response.status}`,
    secondsOf(response.headers.get("retry-after")),
    isOfChange,
  );
}

function secondsOf(header: string | null): number | null {
  const seconds = Number(header);
  return header === null || !Number.isFinite(seconds) ? null : seconds;
}
