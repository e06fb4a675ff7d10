import { queryOptions } from "@tanstack/react-query";
import { ApiError } from "./api-error";
import { makeKeys } from "./keys";
import { request, setCsrf } from "./request";
import type { Schema } from "./types";

export type Caller = Schema<"Caller">;

export const sessionKeys = makeKeys("session");

/** The caller, or null if nobody is logged in. */
export const sessionQuery = queryOptions({
  queryKey: sessionKeys.all,
  queryFn: async ({ signal }): Promise<Caller | null> => {
    try {
      const { data } = await request("get", "/v1/session", { signal });
      setCsrf(data.csrf);
      return data;
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        return null;
      }
      throw error;
    }
  },
  staleTime: Infinity,
});

/** Begins a session. Throws ApiError: 401 for a wrong password, 429 if the caller has to wait. */
export async function logIn(user: string, password: string): Promise<void> {
  const { data } = await request("post", "/v1/session", { body: { user, password } });
  setCsrf(data.csrf);
}

export async function logOut(): Promise<void> {
  await request("delete", "/v1/session");
  setCsrf(null);
}

/** Changes the caller's own password, which ends the caller's other sessions. Throws ApiError: 400, field by field. */
export async function changePassword(password: string, newPassword: string): Promise<void> {
  await request("put", "/v1/session/password", { body: { password, new_password: newPassword } });
}
