import type { Delivery } from './delivery.ts'
import type { Hint, LogEvent } from './log/log.ts'

const MOST_MUTED = 4
/** From this takeover of a stream within 10 s on, two listeners are fighting for it. */
const FIGHT = 3

/** The deliveries of this replica by the stream they carry; the newest one has it, older ones may stay muted. */
export class Carriers {
  readonly #byStream = new Map<string, Delivery[]>()

  get size (): number {
    let size = 0
    for (const deliveries of this.#byStream.values()) size += deliveries.length
    return size
  }

  /** Registers a delivery; those before it are displaced when it displaced anybody. */
  add (delivery: Delivery, takeovers: number): void {
    const key = keyOf(delivery.sid, delivery.stream)
    const others = this.#byStream.get(key) ?? []
    this.#byStream.set(key, [...others, delivery])
    displace(others, takeovers)
  }

  /** @returns whether it was the one that carried the stream. */
  remove (delivery: Delivery): boolean {
    const key = keyOf(delivery.sid, delivery.stream)
    const all = this.#byStream.get(key) ?? []
    const left = all.filter(other => other !== delivery)
    if (left.length === 0) this.#byStream.delete(key)
    else this.#byStream.set(key, left)
    if (delivery.muted || all.at(-1) !== delivery) return false
    // The carrier is gone: the muted ones end, so that they come back with their cursors.
    for (const other of left) {
      if (other.muted) other.leave()
    }
    return true
  }

  hint ({ sid, stream, fence, events }: Hint | { sid: string, stream: string, fence: number, events: readonly LogEvent[] }): void {
    for (const delivery of this.#byStream.get(keyOf(sid, stream)) ?? []) delivery.hint(fence, events)
  }

  /** A connection elsewhere has taken the stream from `connection`. */
  taken (sid: string, stream: string, connection: string, takeovers: number): void {
    displace((this.#byStream.get(keyOf(sid, stream)) ?? []).filter(({ carrier }) => carrier.connection === connection), takeovers)
  }

  /** Hints may have been lost: everybody looks. */
  wakeAll (): void {
    for (const delivery of this.all()) delivery.wake()
  }

  /** Ends every connection of a session that is gone. */
  endSession (sid: string): void {
    for (const delivery of this.all()) {
      if (delivery.sid === sid) delivery.connection.end()
    }
  }

  * all (): Iterable<Delivery> {
    for (const deliveries of [...this.#byStream.values()]) yield * deliveries
  }
}

function displace (older: readonly Delivery[], takeovers: number): void {
  for (const delivery of older) {
    if (!delivery.muted) delivery.displace(takeovers >= FIGHT)
  }
  const muted = older.filter(delivery => delivery.muted && !delivery.connection.closed)
  for (const delivery of muted.slice(0, -MOST_MUTED)) delivery.connection.end()
}

function keyOf (sid: string, stream: string): string {
  return `${sid} ${stream}`
}
