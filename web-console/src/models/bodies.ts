/** Bodies of messages as text that can't deceive the reader, as JSON that keeps every digit, and as hex. */

export type Piece = { kind: "text"; text: string } | { kind: "escape"; text: string };

// Control characters but tab, line feed and carriage return; marks of direction; zero-width and other invisible ones.
const HIDDEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u115f\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffc]|\p{Cs}/gu;
const HEX_ROW_BYTES = 16;
/** A hostile body may have millions of such characters, and each piece is an element of the page. */
export const PIECES_MAX = 2_000;

/**
 * Splits a text into what can be shown as it is and escapes of characters that hide or move text. Beyond PIECES_MAX, the
 * rest is one piece, with its escapes in the text.
 */
export function visiblePieces(text: string): Piece[] {
  const pieces: Piece[] = [];
  let at = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (pieces.length >= PIECES_MAX) break;
    if (found.index > at) pieces.push({ kind: "text", text: text.slice(at, found.index) });
    pieces.push({ kind: "escape", text: escapeOf(found[0]) });
    at = found.index + found[0].length;
  }
  if (at < text.length) pieces.push({ kind: "text", text: text.slice(at).replace(HIDDEN, escapeOf) });
  return pieces;
}

function escapeOf(character: string): string {
  return `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`;
}

/**
 * Returns a part of a text, from one UTF-16 unit to another. A character on a border belongs to the part after it, so no
 * part has half of one, and the parts make up the text.
 */
export function sliceOf(text: string, start: number, end: number): string {
  return text.slice(borderAt(text, start), borderAt(text, end));
}

/** Returns the begin of a text, at most `max` UTF-16 units. */
export function beginOf(text: string, max: number): string {
  return sliceOf(text, 0, max);
}

function borderAt(text: string, at: number): number {
  const isInside = at > 0 && (text.codePointAt(at - 1) ?? 0) > 0xffff;
  return isInside ? at - 1 : at;
}

/**
 * Returns JSON with indentation; null if the text is not JSON. Numbers, escapes and the order of names stay as they are
 * written, because the text is laid out again and not parsed into values.
 */
export function indentJson(text: string): string | null {
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const out: string[] = [];
  let depth = 0;
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{}]|[^\s"[\]{},:]+|[,:]/g)) {
    if (token === "}" || token === "]") {
      depth -= 1;
      const isEmpty = out.at(-1) === "{" || out.at(-1) === "[";
      out.push(isEmpty ? token : `\n${"  ".repeat(depth)}${token}`);
      continue;
    }
    const previous = out.at(-1);
    const startsLine = previous === "{" || previous === "[" || previous === ",";
    if (startsLine) out.push(`\n${"  ".repeat(depth)}`);
    out.push(token === ":" ? ": " : token);
    if (token === "{" || token === "[") depth += 1;
  }
  return out.join("");
}

/** Returns a hex dump: offset, bytes, and printable ASCII. `first` is the offset of the first byte. */
export function hexDump(bytes: Uint8Array, first = 0): string {
  const rows: string[] = [];
  for (let at = 0; at < bytes.length; at += HEX_ROW_BYTES) {
    const row = [...bytes.subarray(at, at + HEX_ROW_BYTES)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const ascii = row.map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    rows.push(`${(first + at).toString(16).padStart(8, "0")}  ${hex.padEnd(HEX_ROW_BYTES * 3 - 1)}  ${ascii}`);
  }
  return rows.join("\n");
}

/** Returns the bytes of a body as the API gives it. */
export function bytesOf(body: string, encoding: "text" | "base64"): Uint8Array {
  if (encoding === "text") return new TextEncoder().encode(body);
  const binary = atob(body);
  const bytes = new Uint8Array(binary.length);
  // A body has up to 4 MiB, for which Uint8Array.from with a function takes half a second.
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}
