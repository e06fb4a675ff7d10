/** An action as text: the same call with curl and with gantry, for scripts and for reports of trouble. */
import { fillPath } from "@/api/request";

export interface Call {
  method: "GET" | "PUT" | "POST" | "DELETE";
  path: string;
  values?: Record<string, string>;
  query?: Record<string, string | number | boolean | null | undefined>;
  body?: unknown;
  headers?: Record<string, string>;
  /** A field of the body that the command asks for on the terminal, because it is a secret. */
  prompted?: string;
}

// Python writes the JSON, so that every password is quoted correctly; getpass asks without showing what is typed.
const ASK =
  "import getpass, json, sys; body = json.loads(sys.argv[1]); " +
  "body[sys.argv[2]] = getpass.getpass(sys.argv[2] + ': '); print(json.dumps(body))";

/** Returns a text as one word of a POSIX shell. */
export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** Returns a call as a curl command. The key is the shell's `$GANTRY_API_KEY`, never a secret of the browser. */
export function curlCommand(call: Call, origin: string): string {
  const words = ["curl", "-sS"];
  if (call.method !== "GET") words.push("-X", call.method);
  words.push("-H", '"Authorization: Bearer $GANTRY_API_KEY"');
  for (const [name, value] of Object.entries(call.headers ?? {})) words.push("-H", shellWord(`${name}: ${value}`));
  const isPrompted = call.prompted !== undefined;
  if (call.body !== undefined || isPrompted) {
    words.push(
      "-H",
      "'Content-Type: application/json'",
      "-d",
      isPrompted ? "@-" : shellWord(JSON.stringify(call.body)),
    );
  }
  words.push(shellWord(origin + fillPath(call.path, call.values, call.query)));
  if (call.prompted === undefined) return words.join(" ");
  const asking = ["python3", "-c", `"${ASK}"`, shellWord(JSON.stringify(call.body ?? {})), shellWord(call.prompted)];
  return `${asking.join(" ")} | ${words.join(" ")}`;
}

/** Returns a gantry command of words; undefined words are left out. */
export function gantryCommand(...words: (string | undefined)[]): string {
  return ["gantry", ...words.filter((word) => word !== undefined).map(shellWord)].join(" ");
}
