import { expect, test } from "vitest";
import { beginOf, bytesOf, hexDump, indentJson, PIECES_MAX, sliceOf, visiblePieces } from "./bodies";

test("characters that hide or turn text are shown as escapes", () => {
  expect(visiblePieces("a\u202eb\u0000")).toEqual([
    { kind: "text", text: "a" },
    { kind: "escape", text: "\\u{202e}" },
    { kind: "text", text: "b" },
    { kind: "escape", text: "\\u{0}" },
  ]);
  expect(visiblePieces("line\n\ttab 😀 é")).toEqual([{ kind: "text", text: "line\n\ttab 😀 é" }]);
});

test("a body of nothing but such characters makes a few pieces, and hides none of them", () => {
  const pieces = visiblePieces("a\u202e".repeat(PIECES_MAX));
  expect(pieces).toHaveLength(PIECES_MAX + 1);
  expect(pieces.map(({ text }) => text).join("")).toBe("a\\u{202e}".repeat(PIECES_MAX));
});

test("the begin of a text does not end within a character", () => {
  expect(beginOf("ab😀c", 3)).toBe("ab");
  expect(beginOf("ab😀c", 4)).toBe("ab😀");
  expect(beginOf("ab", 3)).toBe("ab");
  const text = "ab😀c";
  for (let at = 0; at <= text.length; at += 1) {
    expect(sliceOf(text, 0, at) + sliceOf(text, at, text.length)).toBe(text);
    expect(sliceOf(text, at, text.length)).not.toMatch(/^\p{Cs}/u);
  }
});

test("JSON keeps its digits, escapes and repeated names", () => {
  const text = '{"id":9223372036854775807,"x":1.10,"s":"a\\u0041, {b}","x":[],"o":{},"l":[1,null]}';
  expect(indentJson(text)).toBe(
    '{\n  "id": 9223372036854775807,\n  "x": 1.10,\n  "s": "a\\u0041, {b}",\n  "x": [],\n  "o": {},\n  "l": [\n    1,\n    null\n  ]\n}',
  );
  expect(indentJson("{a:1}")).toBeNull();
  expect(indentJson("17")).toBe("17");
});

test("bytes are shown with their offsets", () => {
  expect(hexDump(bytesOf("AP9oaQ==", "base64"))).toBe(`00000000  00 ff 68 69${" ".repeat(36)}  ..hi`);
  expect(hexDump(bytesOf("a", "text"), 0x4000).slice(0, 12)).toBe("00004000  61");
  expect([...bytesOf("é", "text")]).toEqual([0xc3, 0xa9]);
});
