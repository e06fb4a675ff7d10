import type { Schema } from "./types";

type Problem = Schema<"Problem">;

/**
 * The only error of a request. `problem` is the answer of the gateway (RFC 9457); it is null where the gateway gave
 * none, because it can't be reached or something in between answered. `isOfChange` tells a change from a read.
 */
export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    readonly status: number,
    readonly problem: Problem | null,
    message: string,
    readonly retryAfterSeconds: number | null = null,
    readonly isOfChange = false,
  ) {
    super(message);
  }

  /** The last part of the problem's type, such as `unknown-topic`; empty where there is no problem. */
  get kind(): string {
    return this.problem?.type.split("/").at(-1) ?? "";
  }

  /** Why the gateway refused a field of the body, a parameter or a part of it; null if it is not the reason. */
  detailOf(name: string): string | null {
    const field = this.problem?.field?.replace(/^\//, "");
    return field === name || field?.startsWith(`${name}/`) ? (this.problem?.detail ?? null) : null;
  }

  get isUnreachable(): boolean {
    return this.status === 0;
  }

  /** Whether the change may have been made all the same: its answer is missing, or says so. */
  get isInDoubt(): boolean {
    if (this.problem?.outcome === "unknown") return true;
    if (!this.isOfChange) return false;
    // 504: the gateway got no answer itself.
    return this.problem === null ? this.isUnreachable || this.status >= 500 : this.status === 504;
  }

  get isRetryable(): boolean {
    return this.isUnreachable || (this.problem?.retryable ?? this.status >= 500);
  }
}

/** Returns an error as an ApiError, so that one place can show all of them. */
export function asApiError(error: unknown): ApiError {
  return error instanceof ApiError
    ? error
    : new ApiError(0, null, error instanceof Error ? error.message : String(error));
}
