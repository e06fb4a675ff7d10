/** Types of the contract. `contract.d.ts` is generated from openapi/openapi.json by `npm run types`. */
import type { components, paths } from "./contract";

/** A schema of the contract by its name. */
export type Schema<Name extends keyof components["schemas"]> = components["schemas"][Name];

export type Method = "get" | "put" | "post" | "delete";

/** Paths of the contract that have an operation for a method. */
export type PathOf<M extends Method> = {
  [P in keyof paths]: paths[P] extends Record<M, { responses: unknown }> ? P : never;
}[keyof paths];

type OperationOf<P extends keyof paths, M extends Method> = M extends keyof paths[P] ? paths[P][M] : never;

type JsonOf<R> = R extends { content: { "application/json": infer Body } } ? Body : undefined;

/** The body of the successful answer of an operation; undefined where it has none. */
export type Answer<P extends keyof paths, M extends Method> =
  OperationOf<P, M> extends { responses: infer Responses }
    ? {
        [Status in keyof Responses]: Status extends 200 | 201 | 202 | 204 ? JsonOf<Responses[Status]> : never;
      }[keyof Responses]
    : never;

/** The JSON body that an operation takes; undefined where it takes none. */
export type BodyOf<P extends keyof paths, M extends Method> =
  OperationOf<P, M> extends { requestBody?: { content: { "application/json": infer Body } } | undefined }
    ? Body
    : undefined;

/** The values of the path parameters of a path: `/v1/topics/{topic}` needs `topic`. */
export type PathValues<P extends string> = P extends `${string}{${infer Name}}${infer Rest}`
  ? Record<Name, string> & PathValues<Rest>
  : unknown;
