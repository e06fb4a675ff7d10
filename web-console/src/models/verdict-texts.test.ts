import { describe, expect, test } from "vitest";
import english from "@/i18n/en/verdicts.json";
import chinese from "@/i18n/zh/verdicts.json";
import { translateVerdict } from "./verdict-texts";

const zh = (sentence: string) => translateVerdict(sentence, chinese);
const WAITING = "1,234 messages wait, the oldest for 3 h";
const WAITS_ZH = "有 1,234 条消息等待消费，最早的已等待 3 小时";

describe("how much waits", () => {
  test.each([
    ["1 message waits", "有 1 条消息等待消费"],
    ["1,234 messages wait", "有 1,234 条消息等待消费"],
    ["1 message waits, the oldest for less than 1 s", "有 1 条消息等待消费，最早的已等待不到 1 秒"],
    ["2 messages wait, the oldest for 48 s", "有 2 条消息等待消费，最早的已等待 48 秒"],
    ["2 messages wait, the oldest for 3 min", "有 2 条消息等待消费，最早的已等待 3 分钟"],
    ["2 messages wait, the oldest for 5 h", "有 2 条消息等待消费，最早的已等待 5 小时"],
    ["2 messages wait, the oldest for 1,002 days", "有 2 条消息等待消费，最早的已等待 1,002 天"],
    [
      "at most 1 message waits (the group's filter accepts only some), the oldest for 2 min",
      "最多有 1 条消息等待消费（消费组的过滤只接受其中一部分），最早的已等待 2 分钟",
    ],
    [
      "at most 7 messages wait (the group's filter accepts only some)",
      "最多有 7 条消息等待消费（消费组的过滤只接受其中一部分）",
    ],
    [
      "5 messages wait where it has committed, and how many more is unknown, since nothing was ever committed in 1 of 8 queues",
      "已提交过位点的队列中有 5 条消息等待消费，其余条数未知，因为 8 个队列中有 1 个从未提交过位点",
    ],
    [
      "at most 5 messages wait (the group's filter accepts only some) where it has committed, and how many more is unknown, since nothing was ever committed in 0 of 1 queue",
      "已提交过位点的队列中最多有 5 条消息等待消费（消费组的过滤只接受其中一部分），其余条数未知，因为 1 个队列中有 0 个从未提交过位点",
    ],
    ["how many messages wait is unknown, since nothing was ever committed", "等待消费的消息数未知，因为从未提交过位点"],
  ])("%s", (clause, expected) => {
    expect(zh(`Consuming is switched off for the group; ${clause}.`)).toBe(`消费组已暂停接收消息；${expected}。`);
    const capital = clause.charAt(0).toUpperCase() + clause.slice(1);
    expect(zh(`${capital}: the group keeps up.`)).toBe(`${expected}：消费组跟得上。`);
  });
});

const CAUSES = [
  ["Everything that is there has been consumed.", "现有消息已全部消费。"],
  [
    "The group's filter accepts none of the 1 message behind the commit.",
    "已提交位点之后有 1 条消息，消费组的过滤不接受其中任何一条。",
  ],
  [
    "The 1,234 messages behind the commit were consumed while the report was made.",
    "已提交位点之后的 1,234 条消息在生成报表期间已被消费。",
  ],
  [`${WAITING}, and it is unknown whether a consumer is connected.`, `${WAITS_ZH}，是否有消费者连接未知。`],
  [
    `${WAITING}, and it is unknown whether a consumer is connected: broker b: $& {{n}}; [SYSTEM_BUSY].`,
    `${WAITS_ZH}，是否有消费者连接未知：broker b: $& {{n}}; [SYSTEM_BUSY]。`,
  ],
  [
    `The oldest message that waits is deleted in 2 days, but to get through its queue takes 3 days; ${WAITING}.`,
    `等待中最早的消息将在 2 天后被删除，但消费完其队列需要 3 天；${WAITS_ZH}。`,
  ],
  [
    `The oldest message that waits may be deleted at any moment, and nothing of its queue is being consumed; ${WAITING}.`,
    `等待中最早的消息随时可能被删除，而其队列没有被消费；${WAITS_ZH}。`,
  ],
  [
    `The committed offset went back by 1 message a short time ago; ${WAITING}.`,
    `已提交位点不久前回退了 1 条消息；${WAITS_ZH}。`,
  ],
  [`No consumer of the group was ever connected; ${WAITING}.`, `该消费组从未有消费者连接；${WAITS_ZH}。`],
  [`No consumer is connected; ${WAITING}.`, `没有已连接的消费者；${WAITS_ZH}。`],
  [`No consumer is connected, though there was one; ${WAITING}.`, `没有已连接的消费者，但曾经有过；${WAITS_ZH}。`],
  [
    `1 consumer is connected, but nothing was committed for 4 min; ${WAITING}.`,
    `1 个消费者已连接，但未提交位点已达 4 分钟；${WAITS_ZH}。`,
  ],
  [
    `12 consumers are connected, but nothing was committed in 3 of 8 queues for 4 min; ${WAITING}.`,
    `12 个消费者已连接，但 8 个队列中有 3 个未提交位点已达 4 分钟；${WAITS_ZH}。`,
  ],
  [
    "1 message came back for another try in the last 15 min, 0.1/s: the consumers fail on them.",
    "最近 15 分钟内有 1 条消息返回重试，0.1 条/秒：消费者处理它们失败。",
  ],
  [
    "2,000 messages came back for another try in the last 15 min, 1,200/s while 9.9/s are consumed for the first time: the consumers fail on them.",
    "最近 15 分钟内有 2,000 条消息返回重试，1,200 条/秒，同时首次消费 9.9 条/秒：消费者处理它们失败。",
  ],
  [
    "Queue 3 of broker of a holds 97 % of the 1,234 messages that wait in 8 queues.",
    "8 个队列中等待消费的 1,234 条消息，有 97 % 在 broker of a 的队列 3 中。",
  ],
  [`${WAITING}; 10 come in/s.`, `${WAITING}; 10 come in/s.`],
  [`${WAITING}; 12/s come in, 0.0/s are consumed.`, `${WAITS_ZH}；流入 12 条/秒，消费 0.0 条/秒。`],
  [`${WAITING}; the rates are not known yet.`, `${WAITS_ZH}；速率尚未知。`],
] as const;

test.each(CAUSES)("cause: %s", (sentence, expected) => {
  expect(zh(sentence)).toBe(expected);
});

const NEVER = "the group has never committed an offset here, so the offset at which it would begin is unknown";

const REASONS = [
  [NEVER, "消费组从未在此提交过位点，因此起始位点未知"],
  [
    "the committed offset 9000 is beyond the end of the queue, 12: the topic was probably deleted and made again",
    "已提交位点 9000 超出队列末尾 12：主题可能被删除后又重新创建",
  ],
  ["the broker gave no offsets", "Broker 没有给出位点"],
  ["the first unconsumed message was not looked up", "没有查询首条未消费的消息"],
  ["the first message can't be read", "无法读取首条消息"],
  [
    "the first message was stored after the time of this report, and the broker's time is unknown",
    "首条消息的存储时间晚于此报表的时间，且 Broker 的时间未知",
  ],
  [
    "broker a-0 answered 1,234 s after the first one, so its numbers are not added to the others'",
    "Broker a-0 的应答比最先应答的晚 1,234 秒，因此其数据未计入总数",
  ],
  ["broker a-0: no name server knows it just now", "Broker a-0：目前没有名称服务器知道它"],
  ["broker a-0: no master of it is registered just now", "Broker a-0：目前没有注册其主节点"],
  ["broker a-0: no answer within 30000 ms", "Broker a-0：30000 毫秒内没有应答"],
  ["broker a-0 does not know request 1203, so it can't say", "Broker a-0 不支持请求 1203，因此无法说明"],
  ["the group's filter has 99 tags, at most 64 can be asked for", "消费组的过滤有 99 个标签，最多可查询 64 个"],
  ["the group's filter has more than 4096 bytes", "消费组的过滤超过 4096 字节"],
] as const;

describe("reasons why a queue can't be judged", () => {
  test.each(REASONS)("%s", (reason, expected) => {
    expect(zh(`${reason}.`)).toBe(`${expected}。`);
    expect(zh(`1 of 8 queues can't be judged: ${reason}.`)).toBe(`8 个队列中有 1 个无法判断：${expected}。`);
  });

  test("several, more than the report names, and no consumer", () => {
    const more = "; and 2 more reasons; no consumer is connected, and it is unknown whether there ever was one.";
    expect(zh(`1 of 1 queue can't be judged: the broker gave no offsets; ${NEVER}${more}`)).toBe(
      "1 个队列中有 1 个无法判断：Broker 没有给出位点；消费组从未在此提交过位点，因此起始位点未知；" +
        "以及另外 2 个原因；没有已连接的消费者，是否曾经有过未知。",
    );
  });

  test("the error of a broker stays as it is, with its semicolons", () => {
    expect(zh(`3 of 8 queues can't be judged: broker a: busy; try later; ${NEVER}.`)).toBe(
      "8 个队列中有 3 个无法判断：broker a: busy; try later；消费组从未在此提交过位点，因此起始位点未知。",
    );
    expect(zh(`broker a: busy; ${NEVER}.`)).toBe(`broker a: busy; ${NEVER}.`);
  });
});

describe("around a cause", () => {
  test.each([
    ["Ignored, else STOPPED. ", "已忽略，否则为 STOPPED。"],
    ["Ignored until 2026-12-01 08:30 UTC, else OK. ", "已忽略至 2026-12-01 08:30 UTC，否则为 OK。"],
    [
      "Ignored (a (test), else OK. really), else NO_CONSUMER. ",
      "已忽略（a (test), else OK. really），否则为 NO_CONSUMER。",
    ],
    [
      "Ignored until 2026-12-01 08:30 UTC (迁移\n中), else OK. ",
      "已忽略至 2026-12-01 08:30 UTC（迁移\n中），否则为 OK。",
    ],
    ["", ""],
  ])("%s", (before, translatedBefore) => {
    const sentence = `${before}No consumer is connected; 1 message waits.`;
    const expected = `${translatedBefore}没有已连接的消费者；有 1 条消息等待消费。`;
    expect(zh(sentence)).toBe(expected);
    for (const [missed, translated] of [
      ["1,234 s behind, 60 s allowed", "落后 1,234 秒，允许 60 秒"],
      ["0 s behind, 0.25 s allowed", "落后 0 秒，允许 0.25 秒"],
      ["1 s behind, 1.0E-4 s allowed", "落后 1 秒，允许 1.0E-4 秒"],
      ["1 messages behind, 0 allowed", "落后 1 条消息，允许 0 条"],
      [
        "90 s behind, 60 s allowed; 2,000 messages behind, 1,000 allowed",
        "落后 90 秒，允许 60 秒；落后 2,000 条消息，允许 1,000 条",
      ],
    ] as const) {
      expect(zh(`${sentence} It is over its objective: ${missed}.`)).toBe(`${expected}超出目标：${translated}。`);
    }
  });

  test("a missed objective follows the error of a broker", () => {
    expect(
      zh("1 of 2 queues can't be judged: broker a: busy. It is over its objective: 9 messages behind, 5 allowed."),
    ).toBe("2 个队列中有 1 个无法判断：broker a: busy。超出目标：落后 9 条消息，允许 5 条。");
  });
});

const SHORTEN = "Shorten what one message takes first (calls to databases and services), then ";
const SHORTEN_ZH = "先缩短单条消息的处理时间（调用数据库和服务），再增加线程或";

test.each([
  ["Wait: at this pace it is over in 48 s.", "请等待：按目前的速度，消费完还需 48 秒。"],
  [
    `${SHORTEN}add threads or queues: with 1 queue a further consumer would stand idle.`,
    `${SHORTEN_ZH}队列：只有 1 个队列，再多一个消费者也会空闲。`,
  ],
  [
    `${SHORTEN}add threads or queues: with 1,024 queues a further consumer would stand idle.`,
    `${SHORTEN_ZH}队列：只有 1,024 个队列，再多一个消费者也会空闲。`,
  ],
  [`${SHORTEN}add threads or consumers, up to one a queue (8).`, `${SHORTEN_ZH}消费者，最多每个队列一个（8）。`],
  ["at the present rates it takes more than 30 days", "按目前的速率需要超过 30 天"],
])("next step or forecast: %s", (sentence, expected) => {
  expect(zh(sentence)).toBe(expected);
});

const sources = import.meta.glob<string>("../../../spark/transforms/{lagtexts,drain,queuelag}.py", {
  eager: true,
  query: "?raw",
  import: "default",
});

test("the reports have each sentence without a value, and it has its Chinese text", () => {
  // Long literals of Python are in pieces.
  const source = Object.values(sources)
    .join("\n")
    .replace(/"\n\s*"/g, "");
  const fixed = Object.entries(english).flatMap(([part, texts]) =>
    Object.entries(texts)
      .filter(([, text]) => !text.includes("{{"))
      .map(([name, text]) => ({ part, name, text })),
  );
  expect(fixed.length).toBeGreaterThan(20);
  for (const { part, name, text } of fixed) {
    expect(source).toContain(text);
    if (part === "step" || part === "drain") {
      expect(zh(text)).toBe((chinese as Record<string, Record<string, string>>)[part]?.[name]);
    }
  }
});

test.each([
  "",
  "The moon is full.",
  "No consumer is connected; the moon is full.",
  "No consumer is connected; 1 message waits. The moon is full.",
  "Ignored (test), else STOPPED. The moon is full.",
  "The moon is full. It is over its objective: 9 messages behind, 5 allowed.",
  "No consumer is connected; 1 message waits. It is over its objective: the moon.",
  "No consumer is connected; 2 messages wait, the oldest for 3 weeks.",
  "Consumers are slow; 1 message waits.",
  "Wait: at this pace it is over in 3 weeks.",
])("a sentence that is not known stays as it is: %s", (sentence) => {
  expect(zh(sentence)).toBe(sentence);
});

test("a language without these texts shows the sentences in English", () => {
  expect(translateVerdict("Everything that is there has been consumed.", {})).toBe(
    "Everything that is there has been consumed.",
  );
});
