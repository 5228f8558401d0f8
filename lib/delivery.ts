import { setTimeout as sleep } from 'node:timers/promises'
import type { OutgoingHttpHeaders } from 'node:http'
import { sameEvent, type EventId } from './event-id.ts'
import type { Connection } from './connection.ts'
import type { Carrier, Log, LogEvent, Page, StreamState } from './log/log.ts'

/** How events and the end of a stream are written for one client. */
export interface Framing {
  readonly event: (event: LogEvent) => string
  /** The last frame before the server ends a stream that is not finished: where to resume, and when. */
  readonly goodbye: (position: EventId) => string
}

export interface DeliveryOptions {
  readonly log: Log
  readonly sid: string
  readonly stream: string
  readonly connection: Connection
  readonly carrier: Carrier
  readonly fence: number
  /** The replica that runs the stream's request. */
  readonly runner: string
  readonly framing: Framing
  /** The event that the client has; the next one delivered is its successor. */
  readonly position: EventId
  /** Nothing is known of the position but its number: the first event above it is delivered (after `diverged`). */
  readonly anchored: boolean
  readonly onClose: () => void
}

const PAGE_BYTES = 256 * 1024
const FIRST_RETRY_MS = 100
const LAST_RETRY_MS = 2000

/**
 * One connection's loop over one stream: replay and live are the same. It writes an event only if the event's
 * predecessor is its position, so there is no buffer to merge and nothing to hand over; whenever that cannot be told
 * from what it was given, it reads the log after its position.
 */
export class Delivery {
  readonly sid: string
  readonly stream: string
  readonly connection: Connection
  readonly #options: DeliveryOptions
  #position: EventId
  #anchored: boolean
  #scanned: number
  #reading = false
  /** News came while a read was in flight or the socket pushed back. */
  #again = false
  #muted = false
  #finished = false

  constructor (options: DeliveryOptions) {
    this.#options = options
    this.sid = options.sid
    this.stream = options.stream
    this.connection = options.connection
    this.#position = options.position
    this.#anchored = options.anchored
    this.#scanned = options.position.seq
  }

  get position (): EventId {
    return this.#position
  }

  get carrier (): Carrier {
    return this.#options.carrier
  }

  get runner (): string {
    return this.#options.runner
  }

  get muted (): boolean {
    return this.#muted
  }

  /** The stream's last event has been written: nothing is left to resume. */
  get finished (): boolean {
    return this.#finished
  }

  /** Writes the head and `first`, then delivers. */
  open (headers: OutgoingHttpHeaders, first: string): void {
    this.connection.open(headers, first, {
      onRoom: () => this.wake(),
      onClose: this.#options.onClose,
      onTick: () => { void this.#tick() }
    })
  }

  /** Writes the first page, which was read when the stream got this carrier, and looks for what came since. */
  start (page: Page | undefined): void {
    if (this.connection.closed || this.#muted) return
    this.#accept(page)
    this.wake()
  }

  /** There may be news; look. */
  wake (): void {
    this.#again = true
    if (!this.#reading) void this.#read()
  }

  /** News of the stream: written at once when it is exactly what comes next, else a reason to look. */
  hint (fence: number, events: readonly LogEvent[]): void {
    if (this.connection.closed || this.#muted || this.#superseded(fence)) return
    const next = events.filter(({ id }) => id.seq > this.#position.seq)
    if (events.length > 0 && next.length === 0) return
    if (this.#reading || this.#anchored || !this.connection.hasRoom || next.length === 0 || !this.#follows(next[0]!)) {
      this.wake()
    } else {
      this.#write(next)
    }
  }

  /** Another connection has taken the stream: end, or go on with comments only. */
  displace (mute: boolean): void {
    if (mute) this.#muted = true
    else this.connection.end()
  }

  /** Ends the connection; the client may resume at its position. */
  leave (): void {
    this.connection.end(this.#muted ? '' : this.#options.framing.goodbye(this.#position))
  }

  async #read (): Promise<void> {
    const { log, sid, stream } = this.#options
    this.#reading = true
    let wait = FIRST_RETRY_MS
    while (this.#again && !this.connection.closed && !this.#muted && this.connection.hasRoom) {
      this.#again = false
      try {
        const page = await readPage(log, sid, stream, this.#position, this.#anchored, this.#scanned)
        if (this.connection.closed || this.#muted) break
        this.#accept(page)
        wait = FIRST_RETRY_MS
      } catch {
        // The log is away: the connection stays, and reads on afterwards.
        this.#again = true
        await sleep(wait, undefined, { ref: false })
        wait = Math.min(wait * 2, LAST_RETRY_MS)
      }
    }
    this.#reading = false
    if (this.#again && !this.connection.closed && !this.#muted && this.connection.hasRoom) void this.#read()
  }

  #accept (page: Page | undefined): void {
    if (page === undefined) {
      this.connection.end()
    } else if (!this.#superseded(page.stream.fence)) {
      this.#take(page.events, page.more, page.stream)
      this.#scanned = Math.max(page.scanned, this.#position.seq)
      if (page.more) this.#again = true
    }
  }

  #take (events: readonly LogEvent[], more: boolean, state: StreamState): void {
    if (events.length > 0) {
      if (this.#anchored || this.#follows(events[0]!)) this.#write(events)
      else this.leave()
      if (more || this.connection.closed) return
    }
    if (more) return
    if (state.newest.seq > this.#position.seq) {
      // Read before the newest was logged, or what comes next was evicted from under a slow reader.
      if (events.length === 0) this.leave()
      else this.#again = true
    } else if (!this.#anchored && !sameEvent(state.newest, this.#position)) {
      this.leave()
    } else if (state.finished) {
      this.#finish()
    }
  }

  #write (events: readonly LogEvent[]): void {
    const { framing } = this.#options
    let text = ''
    for (const event of events) text += framing.event(event)
    const last = events.at(-1)!
    this.#position = last.id
    this.#anchored = false
    this.#scanned = Math.max(this.#scanned, last.id.seq)
    if (last.final) this.#finish(text)
    else this.connection.write(text)
  }

  #finish (last = ''): void {
    this.#finished = true
    this.connection.end(last)
  }

  #follows ({ id, predecessor }: LogEvent): boolean {
    const { seq, offset, tag } = this.#position
    return predecessor !== undefined && predecessor.seq === seq && predecessor.tag === tag && id.offset === offset + 1
  }

  #superseded (fence: number): boolean {
    if (fence <= this.#options.fence) return false
    this.connection.end()
    return true
  }

  async #tick (): Promise<void> {
    const { log, sid, stream, carrier } = this.#options
    try {
      const state = await log.tick(sid, stream, carrier, this.#position)
      if (this.connection.closed) return
      if (state === undefined) this.connection.end()
      else if (this.#muted) {
        if (state.carrier === undefined) this.connection.end()
      } else if (!this.#superseded(state.fence) && (!sameEvent(state.newest, this.#position) || state.finished)) this.wake()
    } catch {
      // The log is away; the next tick looks again.
    }
  }
}

/** One page of a stream after a position; `anchored`: only its number is known. */
export async function readPage (log: Log, sid: string, stream: string, { seq, offset }: EventId, anchored: boolean, scanned = seq): Promise<Page | undefined> {
  return await log.read(sid, stream, { seq, offset: anchored ? -1 : offset }, scanned, PAGE_BYTES)
}
