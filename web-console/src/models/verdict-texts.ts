/**
 * The sentences of a lag verdict in another language. The API gives `cause`, `next_step` and `drain_unknown` as English
 * prose, built by spark/transforms/lagtexts.py and drain.py from few parts. i18n/en/verdicts.json has these parts as
 * patterns, another language's verdicts.json has what they become: part → name → text with holes.
 *
 * A sentence is translated as a whole or not at all, apart from free text: the reason of an ignored group, names, and
 * the errors of brokers.
 */
import english from "@/i18n/en/verdicts.json";

export type VerdictTexts = Record<string, Record<string, string>>;

interface Hole {
  pattern: string;
  /** Returns the translation of what the hole holds, null if it is not known. A hole without it holds data. */
  translate?: (found: string, texts: VerdictTexts) => string | null;
}

interface Pattern {
  name: string;
  expression: RegExp;
  holes: string[];
}

const NUMBER = String.raw`(-?\d[\d,]*(?:\.\d+)?(?:E-?\d+)?)`;
const ANYTHING = "(.+)";

const part = (name: string): Hole => ({
  pattern: ANYTHING,
  translate: (found, texts) => translatePart(name, found, texts),
});

/** A digit after the name of a hole tells two of a kind apart. */
const HOLES: Record<string, Hole> = {
  n: { pattern: NUMBER },
  messages: { pattern: `${NUMBER} messages?` },
  queues: { pattern: `${NUMBER} queues?` },
  waits: { pattern: `${NUMBER} (?:message waits|messages wait)` },
  consumers: { pattern: `${NUMBER} (?:consumer is|consumers are)` },
  rate: { pattern: `${NUMBER}/s` },
  time: { pattern: String.raw`(\d{4}-\d\d-\d\d \d\d:\d\d)` },
  verdict: { pattern: "([A-Z_]+)" },
  text: { pattern: ANYTHING },
  cause: part("cause"),
  // A clause at the begin of a sentence has a capital.
  waiting: {
    pattern: ANYTHING,
    translate: (found, texts) => translatePart("waiting", found.charAt(0).toLowerCase() + found.slice(1), texts),
  },
  count: part("count"),
  rates: part("rates"),
  deleted: part("deleted"),
  consuming: part("consuming"),
  missed: part("missed"),
  duration: part("duration"),
  reasons: { pattern: ANYTHING, translate: (found, texts) => translateReasons(found, texts).text },
  known: {
    pattern: ANYTHING,
    translate: (found, texts) => {
      const { text, isWhole } = translateReasons(found, texts);
      return isWhole ? text : null;
    },
  },
};

/** Returns a sentence of a verdict by the texts of a language; one that is not known stays as it is. */
export function translateVerdict(sentence: string, texts: VerdictTexts): string {
  for (const name of ["cause", "step", "drain"]) {
    const found = translatePart(name, sentence, texts);
    if (found !== null) return found;
  }
  return sentence;
}

function translatePart(part: string, sentence: string, texts: VerdictTexts): string | null {
  for (const { name, expression, holes } of patternsOf(part)) {
    const match = expression.exec(sentence);
    if (match === null) continue;
    const filled = new Map<string, string>();
    for (const [at, hole] of holes.entries()) {
      const found = match[at + 1] ?? "";
      const translate = holeOf(hole).translate;
      const value = translate === undefined ? found : translate(found, texts);
      if (value !== null) filled.set(hole, value);
    }
    const text = texts[part]?.[name];
    if (filled.size < holes.length || text === undefined) continue;
    return text.replace(/\{\{(\w+)\}\}/g, (_, hole: string) => filled.get(hole) ?? "");
  }
  return null;
}

/** Translates the reasons that are known. The others are errors of brokers and stay as they are. */
function translateReasons(reasons: string, texts: VerdictTexts): { text: string; isWhole: boolean } {
  let text = "";
  let isWhole = true;
  for (const [at, reason] of reasons.split("; ").entries()) {
    const found = translatePart("reason", reason, texts);
    if (found === null) isWhole = false;
    // An error may itself contain semicolons.
    if (at > 0) text += found === null ? "; " : (texts.mark?.between ?? "; ");
    text += found ?? reason;
  }
  return { text, isWhole };
}

const compiled = new Map<string, Pattern[]>();

function patternsOf(part: string): Pattern[] {
  const known = compiled.get(part);
  if (known !== undefined) return known;
  const texts = (english as VerdictTexts)[part] ?? {};
  const patterns = Object.entries(texts).map(([name, text]) => toPattern(name, text));
  compiled.set(part, patterns);
  return patterns;
}

function toPattern(name: string, text: string): Pattern {
  // Every second piece is the name of a hole.
  const pieces = text.split(/\{\{(\w+)\}\}/);
  const source = pieces.map((piece, at) => (at % 2 === 1 ? holeOf(piece).pattern : escaped(piece))).join("");
  return { name, expression: new RegExp(`^${source}$`, "s"), holes: pieces.filter((_, at) => at % 2 === 1) };
}

function holeOf(name: string): Hole {
  const hole = HOLES[name.replace(/\d$/, "")];
  if (hole === undefined) throw new RangeError(name);
  return hole;
}

function escaped(text: string): string {
  return text.replace(/[.*+?^${}()|[\]\\]/g, String.raw`\$&`);
}
