/**
 * A client of the gateway's WebSocket stream. It knows nothing of the console: it is given a function that gets tickets,
 * and reports frames and its state. It connects again by itself, with growing pauses, until it is closed.
 */
import { readFrame, type ServerFrame, type Subscribe, type Tail } from "./frames";

const SUBPROTOCOL = "gantry.v1.json";
/** The identity of the connection has ended: its session or key. */
const IDENTITY = 4401;
const PAUSE_MS_MIN = 500;
const PAUSE_MS_MAX = 30_000;

export type StreamState = "connecting" | "open" | "waiting" | "closed";

export interface StreamOptions {
  /** URL of the stream, such as wss://host/v1/stream. */
  url: string;
  /**
   * Returns a one-use ticket (POST /v1/tickets). If it fails, the client tries again later. It is asked for a new one, too,
   * if the session behind the last one has ended: so it is here that a lost session shows, and where a log-in begins.
   */
  ticket: () => Promise<string>;
  onFrame: (frame: ServerFrame) => void;
  /** `reason` is what the gateway or the network said, for people. */
  onState: (state: StreamState, reason: string | null) => void;
  /** For tests. */
  connect?: (url: string, protocol: string) => WebSocket;
}

export class StreamClient {
  private socket: WebSocket | null = null;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private readonly subscriptions: (Subscribe | Tail)[] = [];
  private failures = 0;
  private lastId = 0;
  private isClosed = false;
  private goodbye: { reason: string; retry: boolean; afterMs: number } | null = null;

  constructor(private readonly options: StreamOptions) {
    void this.open();
  }

  /** Subscribes now, and again on each new connection. */
  subscribe(subscription: Subscribe | Tail): void {
    this.subscriptions.push(subscription);
    if (this.socket?.readyState === 1) {
      this.sendSubscribe(subscription);
    }
  }

  ack(subscription: string, receipts: string[]): void {
    this.send({ type: "ack", subscription, receipts });
  }

  /** Lets the server send this much more; a live tail acknowledges nothing, so nothing else gives it credit. */
  credit(subscription: string, messages: number, bytes: number): void {
    this.send({ type: "credit", subscription, messages, bytes });
  }

  pause(subscription: string): void {
    this.send({ type: "pause", subscription });
  }

  resume(subscription: string): void {
    this.send({ type: "resume", subscription });
  }

  /** Ends the pause before the next attempt, because what it waits for has come: a log-in, or the gateway. */
  retryNow(): void {
    if (this.timer === null) return;
    clearTimeout(this.timer);
    this.timer = null;
    this.failures = 0;
    void this.open();
  }

  /** Ends the connection for good. */
  close(): void {
    this.isClosed = true;
    if (this.timer !== null) {
      clearTimeout(this.timer);
    }
    this.socket?.close(1000);
    this.options.onState("closed", null);
  }

  private async open(): Promise<void> {
    this.options.onState("connecting", null);
    let ticket: string;
    try {
      ticket = await this.options.ticket();
    } catch (error) {
      this.retry(error instanceof Error ? error.message : String(error));
      return;
    }
    if (this.isClosed) {
      return;
    }
    const url = `${this.options.url}?ticket=${encodeURIComponent(ticket)}`;
    const connect = this.options.connect ?? ((address, protocol) => new WebSocket(address, protocol));
    const socket = connect(url, SUBPROTOCOL);
    this.socket = socket;
    this.goodbye = null;
    socket.onmessage = (event: MessageEvent<unknown>) => {
      const frame = typeof event.data === "string" ? readFrame(event.data) : null;
      if (frame !== null) {
        this.receive(frame);
      }
    };
    socket.onclose = (event) => {
      this.lost(event);
    };
  }

  private receive(frame: ServerFrame): void {
    if (frame.type === "welcome") {
      this.failures = 0;
      this.options.onState("open", null);
      this.subscriptions.forEach((subscription) => {
        this.sendSubscribe(subscription);
      });
    } else if (frame.type === "goodbye") {
      this.goodbye = { reason: frame.reason, retry: frame.retry, afterMs: frame.after_ms ?? 0 };
    }
    this.options.onFrame(frame);
  }

  private lost(event: CloseEvent): void {
    this.socket = null;
    if (this.isClosed) {
      return;
    }
    const reason = this.goodbye?.reason ?? (event.reason || null);
    if (this.goodbye !== null && !this.goodbye.retry && event.code !== IDENTITY) {
      this.isClosed = true;
      this.options.onState("closed", reason);
      return;
    }
    this.retry(reason);
  }

  private retry(reason: string | null): void {
    if (this.isClosed) {
      return;
    }
    const pauseMs = Math.min(PAUSE_MS_MAX, PAUSE_MS_MIN * 2 ** this.failures);
    this.failures += 1;
    this.options.onState("waiting", reason);
    this.timer = setTimeout(
      () => {
        this.timer = null;
        void this.open();
      },
      Math.max(pauseMs, this.goodbye?.afterMs ?? 0),
    );
  }

  private sendSubscribe(subscription: Subscribe | Tail): void {
    this.lastId += 1;
    this.send({ type: "subscribe", id: String(this.lastId), ...subscription });
  }

  private send(frame: object): void {
    if (this.socket?.readyState === 1) {
      this.socket.send(JSON.stringify(frame));
    }
  }
}
