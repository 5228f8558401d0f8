import type { OutgoingHttpHeaders, ServerResponse } from 'node:http'
import { encodeComment } from './sse.ts'

export interface ConnectionOptions {
  /** Unique among this replica's connections. */
  readonly id: string
  readonly raw: ServerResponse
  /** Time between keep-alive comments, in ms. */
  readonly keepAliveMs: number
  /** A peer that takes nothing for this long, in ms, is dropped; its events are not. */
  readonly stallMs: number
}

/** What a connection tells the delivery that drives it. */
export interface ConnectionEvents {
  /** There is room again after there was none. */
  readonly onRoom: () => void
  /** Once, when the response is over, whoever ended it. */
  readonly onClose: () => void
  readonly onTick: () => void
}

const HIGH_WATER = 64 * 1024

/** One SSE response: head, writes with back-pressure, keep-alive, end. Late calls are normal and do nothing. */
export class Connection {
  readonly id: string
  readonly #raw: ServerResponse
  readonly #stallMs: number
  readonly #keepAliveMs: number
  #events: ConnectionEvents | undefined
  #timer: NodeJS.Timeout | undefined
  #lastTaken = Date.now()
  #closed = false
  #ended = false

  constructor ({ id, raw, keepAliveMs, stallMs }: ConnectionOptions) {
    this.id = id
    this.#raw = raw
    this.#keepAliveMs = keepAliveMs
    this.#stallMs = stallMs
    // A client may go at any moment, also before the head is written.
    raw.on('error', () => {})
    raw.once('close', () => this.#close())
    if (raw.destroyed || raw.closed) this.#close()
  }

  get closed (): boolean {
    return this.#closed || this.#ended
  }

  /** Fewer than 64 KiB are unsent. */
  get hasRoom (): boolean {
    return this.#raw.writableLength < HIGH_WATER
  }

  /** Writes the head together with the first bytes of the body. */
  open (headers: OutgoingHttpHeaders, first: string, events: ConnectionEvents): void {
    this.#events = events
    if (this.#closed) {
      events.onClose()
      return
    }
    this.#raw.on('drain', () => events.onRoom())
    this.#raw.writeHead(200, headers)
    this.write(first)
    this.#timer = setInterval(() => this.#tick(), this.#keepAliveMs).unref()
  }

  write (text: string): void {
    if (this.closed || text === '') return
    this.#raw.write(text, () => { this.#lastTaken = Date.now() })
  }

  /** Ends the response gracefully: some clients take an aborted one for a failure that counts against the server. */
  end (last = ''): void {
    if (this.closed) return
    this.#ended = true
    clearInterval(this.#timer)
    this.#raw.end(last)
    // The peer may never take the rest.
    const guard = setTimeout(() => this.#raw.destroy(), this.#stallMs).unref()
    this.#raw.once('close', () => clearTimeout(guard))
  }

  #tick (): void {
    if (this.#raw.writableLength > 0 && Date.now() - this.#lastTaken > this.#stallMs) {
      this.#raw.destroy()
      return
    }
    if (this.hasRoom) this.write(encodeComment('ka'))
    this.#events?.onTick()
  }

  #close (): void {
    if (this.#closed) return
    this.#closed = true
    clearInterval(this.#timer)
    this.#events?.onClose()
  }
}
