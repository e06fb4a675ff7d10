/** What a live tail shows: the newest messages, and how many others there were. Pure; the page feeds it in batches. */

export const SHOWN_MAX = 500;
/** Bodies have up to 4 MiB each, and 500 of them would end the tab. */
export const SHOWN_BYTES_MAX = 32 * 1024 * 1024;

export interface TailView<M> {
  /** The newest messages, the newest first. */
  rows: readonly M[];
  received: number;
  /** Messages that came and have left the view, because newer ones took their place. */
  left: number;
  /** Stored messages that the gateway did not send, in all connections; 64 bits. */
  skipped: bigint;
  /** `skipped` of connections that have ended. */
  skippedBefore: bigint;
}

export const EMPTY_TAIL: TailView<never> = { rows: [], received: 0, left: 0, skipped: 0n, skippedBefore: 0n };

/** Returns the view after a batch, given in the order of arrival. The newest message is shown, whatever its size. */
export function arrived<M extends { size: number }>(view: TailView<M>, batch: readonly M[]): TailView<M> {
  const newest = [...batch.slice(-SHOWN_MAX).reverse(), ...view.rows].slice(0, SHOWN_MAX);
  let bytes = 0;
  const tooMany = newest.findIndex(({ size }, at) => (bytes += size) > SHOWN_BYTES_MAX && at > 0);
  const rows = tooMany < 0 ? newest : newest.slice(0, tooMany);
  const received = view.received + batch.length;
  return { ...view, rows, received, left: received - rows.length };
}

/** Returns the view after the gateway said how many messages this connection has skipped. */
export function skipped<M>(view: TailView<M>, count: string): TailView<M> {
  return { ...view, skipped: view.skippedBefore + BigInt(count) };
}

/** Returns the view at the begin of a connection: the gateway counts from 0 again. */
export function reconnected<M>(view: TailView<M>): TailView<M> {
  return { ...view, skippedBefore: view.skipped };
}
