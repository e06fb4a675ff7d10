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

// The cookie and the token of a log-in stay in a file and a variable; the passwords are typed and never on a command line.
const OWN_PASSWORD = `(umask 077; jar=$(mktemp); trap 'rm -f "$jar"' EXIT
say() { python3 -c "$@"; }
old=$(say "import getpass, json, sys; print(json.dumps({'user': sys.argv[1], 'password': getpass.getpass('password: ')}))" USER) &&
csrf=$(printf %s "$old" | curl -sSf -c "$jar" -H 'Content-Type: application/json' -d @- ORIGIN/v1/session | say "import json, sys; print(json.load(sys.stdin)['csrf'])") &&
printf %s "$old" | say "import getpass, json, sys; old = json.load(sys.stdin)['password']; print(json.dumps({'password': old, 'new_password': getpass.getpass('new password: ')}))" |
curl -sS -b "$jar" -X PUT -H "X-CSRF-Token: $csrf" -H 'Content-Type: application/json' -d @- ORIGIN/v1/session/password)`;

/** Returns the curl commands that log in as a user and change the own password, which no key can do. */
export function ownPasswordCommand(user: string, origin: string): string {
  return OWN_PASSWORD.replace(/USER|ORIGIN/g, (word) => shellWord(word === "USER" ? user : origin));
}

/** Returns a gantry command of words; undefined words are left out. */
export function gantryCommand(...words: (string | undefined)[]): string {
  return ["gantry", ...words.filter((word) => word !== undefined).map(shellWord)].join(" ");
}
