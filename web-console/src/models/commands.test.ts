import { expect, test } from "vitest";
import { curlCommand, gantryCommand, ownPasswordCommand, shellWord } from "./commands";

test("names can't leave their word of the shell", () => {
  expect(shellWord("a'; rm -rf /; '")).toBe(`'a'\\''; rm -rf /; '\\'''`);
  expect(shellWord("$(id)")).toBe("'$(id)'");
  expect(shellWord("orders-1")).toBe("orders-1");
  expect(shellWord("")).toBe("''");
});

test("a call is a curl command that carries no secret", () => {
  expect(
    curlCommand(
      { method: "PUT", path: "/v1/topics/{topic}", values: { topic: "a b" }, body: { perm: "r" } },
      "http://h:1",
    ),
  ).toBe(
    `curl -sS -X PUT -H "Authorization: Bearer $GANTRY_API_KEY" -H 'Content-Type: application/json' -d '{"perm":"r"}' http://h:1/v1/topics/a%20b`,
  );
});

test("a gantry command leaves out options without a value", () => {
  expect(gantryCommand("topic", "create", "a b", undefined)).toBe("gantry topic create 'a b'");
});

test("a secret is asked for on the terminal, and goes into the body as JSON", () => {
  const command = curlCommand(
    {
      method: "PUT",
      path: "/v1/users/{user}",
      values: { user: "ada" },
      body: { role: "viewer" },
      prompted: "password",
    },
    "http://h:1",
  );
  expect(command).toMatch(/^python3 -c "[^"$`]*getpass[^"$`]*" '\{"role":"viewer"\}' password \| curl /);
  expect(command).toMatch(/ -d @- http:\/\/h:1\/v1\/users\/ada$/);
});

test("the own password is changed within a session, and no secret is on a command line", () => {
  const command = ownPasswordCommand("a'b", "http://h:1");
  expect(command).toContain(" 'a'\\''b')");
  expect(command).toContain("http://h:1/v1/session |");
  expect(command).toContain("http://h:1/v1/session/password)");
  expect(command).not.toMatch(/USER|ORIGIN/);
});
