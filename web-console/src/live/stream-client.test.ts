import { beforeEach, expect, test, vi } from "vitest";
import { readFrame, type ServerFrame } from "./frames";
import { StreamClient, type StreamState } from "./stream-client";

/** A connection whose other end is the test. */
class Wire {
  readyState = 0;
  sent: Record<string, unknown>[] = [];
  onmessage: ((event: MessageEvent<unknown>) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;

  constructor(readonly url: string) {}

  send(text: string) {
    this.sent.push(JSON.parse(text) as Record<string, unknown>);
  }

  close() {
    this.end();
  }

  say(frame: object) {
    this.readyState = 1;
    this.onmessage?.({ data: JSON.stringify(frame) } as MessageEvent<unknown>);
  }

  end(reason = "", code = 1006) {
    this.readyState = 3;
    this.onclose?.({ code, reason } as CloseEvent);
  }
}

let wires: Wire[];
let states: [StreamState, string | null][];
let frames: ServerFrame[];

async function start(ticket: () => Promise<string> = () => Promise.resolve("t/1")) {
  const client = new StreamClient({
    url: "ws://gateway/v1/stream",
    ticket,
    onFrame: (frame) => frames.push(frame),
    onState: (state, reason) => states.push([state, reason]),
    connect: (url) => {
      wires.push(new Wire(url));
      return wires.at(-1) as unknown as WebSocket;
    },
  });
  await vi.advanceTimersByTimeAsync(0);
  return client;
}

const wire = (at: number) => wires[at] ?? expect.fail(`connection ${at} was not opened`);

beforeEach(() => {
  vi.useFakeTimers();
  [wires, states, frames] = [[], [], []];
});

test("it subscribes after the welcome, and again on the next connection", async () => {
  const client = await start();
  client.subscribe({ group: "G", topic: "T" });
  expect(wire(0).url).toBe("ws://gateway/v1/stream?ticket=t%2F1");
  expect(wire(0).sent).toEqual([]);
  wire(0).say({ type: "welcome" });
  expect(wire(0).sent).toEqual([{ type: "subscribe", id: "1", group: "G", topic: "T" }]);
  wire(0).end();
  expect(states.at(-1)).toEqual(["waiting", null]);
  await vi.advanceTimersByTimeAsync(500);
  wire(1).say({ type: "welcome" });
  expect(wire(1).sent).toHaveLength(1);
});

test("a live tail is subscribed to without a group, gets credit, and pauses", async () => {
  const client = await start();
  client.subscribe({ mode: "tail", topic: "T", rate_per_s: 50 });
  wire(0).say({ type: "welcome" });
  client.credit("s1", 3, 600);
  client.pause("s1");
  client.resume("s1");
  expect(wire(0).sent).toEqual([
    { type: "subscribe", id: "1", mode: "tail", topic: "T", rate_per_s: 50 },
    { type: "credit", subscription: "s1", messages: 3, bytes: 600 },
    { type: "pause", subscription: "s1" },
    { type: "resume", subscription: "s1" },
  ]);
});

test("it waits ever longer, and as long as the gateway asks", async () => {
  await start();
  wire(0).end();
  await vi.advanceTimersByTimeAsync(500);
  wire(1).end();
  await vi.advanceTimersByTimeAsync(999);
  expect(wires).toHaveLength(2);
  await vi.advanceTimersByTimeAsync(1);
  wire(2).say({ type: "goodbye", retry: true, after_ms: 20_000, reason: "stopping" });
  wire(2).end();
  expect(states.at(-1)).toEqual(["waiting", "stopping"]);
  await vi.advanceTimersByTimeAsync(19_999);
  expect(wires).toHaveLength(3);
  await vi.advanceTimersByTimeAsync(1);
  expect(wires).toHaveLength(4);
});

test("a goodbye without a retry ends it", async () => {
  await start();
  wire(0).say({ type: "goodbye", retry: false, reason: "too many wrong frames" });
  wire(0).end("", 4400);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(wires).toHaveLength(1);
  expect(states.at(-1)).toEqual(["closed", "too many wrong frames"]);
});

test("a session that has ended asks for a new ticket, and a log-in ends the pause before the next one", async () => {
  let isIn = true;
  const tickets: boolean[] = [];
  const client = await start(() => {
    tickets.push(isIn);
    return isIn ? Promise.resolve("t1") : Promise.reject(new Error("no session"));
  });
  wire(0).say({ type: "welcome" });
  isIn = false;
  wire(0).say({ type: "goodbye", retry: false, reason: "the session has ended" });
  wire(0).end("", 4401);
  await vi.advanceTimersByTimeAsync(5_000);
  expect(tickets).toContain(false);
  expect(states.at(-1)).toEqual(["waiting", "no session"]);
  isIn = true;
  client.retryNow();
  await vi.advanceTimersByTimeAsync(0);
  wire(1).say({ type: "welcome" });
  expect(states.at(-1)).toEqual(["open", null]);
});

test("nothing that waits to be tried again is hurried along twice, and an open connection is left alone", async () => {
  const client = await start();
  wire(0).say({ type: "welcome" });
  client.retryNow();
  wire(0).end();
  client.retryNow();
  client.retryNow();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(wires).toHaveLength(2);
});

test("without a ticket it tries again, and closing ends that", async () => {
  const client = await start(() => Promise.reject(new Error("no session")));
  expect(states.at(-1)).toEqual(["waiting", "no session"]);
  client.close();
  await vi.advanceTimersByTimeAsync(60_000);
  expect(states.filter(([state]) => state === "connecting")).toHaveLength(1);
});

test("unknown frames and text that is no frame are ignored", async () => {
  await start();
  wire(0).say({ type: "news", text: "x" });
  expect(frames).toEqual([]);
  expect([readFrame("{"), readFrame("null"), readFrame('"x"'), readFrame('{"type":1}')]).toEqual([
    null,
    null,
    null,
    null,
  ]);
  expect(readFrame('{"type":"goodbye","retry":true,"reason":"r","more":1}')).toMatchObject({ more: 1 });
});
