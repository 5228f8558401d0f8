import type { Carriers } from './carriers.ts'
import type { Counters } from './counters.ts'
import { STANDALONE } from './event-id.ts'
import { Appender } from './log/appender.ts'
import type { Append, Appended, Log } from './log/log.ts'
import { encodeJson } from './sse.ts'

export interface OutboxOptions {
  readonly log: Log
  readonly replica: string
  readonly carriers: Carriers
  readonly counters: Counters
  readonly maxQueuedBytes: number
  readonly warn: (details: object, message: string) => void
}

/** The way of this replica's messages: into the log first, then to the connection here that carries the stream. */
export class Outbox {
  readonly #options: OutboxOptions
  readonly #standalone = new Map<string, Appender>()
  /** Sessions whose early eviction was logged. */
  readonly #told = new Set<string>()
  #lastToken = 0

  constructor (options: OutboxOptions) {
    this.#options = options
  }

  readonly nextToken = (): number => ++this.#lastToken

  /** The appender of a session's standalone stream: one for all who write to it here, so that their order is one. */
  standalone (sid: string): Appender {
    let appender = this.#standalone.get(sid)
    if (appender === undefined) {
      appender = this.#appender(sid, STANDALONE, undefined, () => {})
      this.#standalone.set(sid, appender)
    }
    return appender
  }

  /** The appender of a request's stream; a message too many ends the stream. */
  request (sid: string, stream: string, open: Append['open'], onOverflow: () => void): Appender {
    return this.#appender(sid, stream, open, onOverflow)
  }

  /** Forgets the appenders that have nothing to do. */
  sweep (): void {
    for (const [sid, appender] of this.#standalone) {
      if (appender.idle) this.#standalone.delete(sid)
    }
  }

  /** Hands what was just appended to the connection here that carries the stream; the log tells other replicas. */
  deliver (sid: string, stream: string, { events, carrier, fence, evictedEarly }: Appended): void {
    const { replica, carriers, counters, warn } = this.#options
    if (carrier?.replica === replica) carriers.hint({ sid, stream, fence, events })
    if (evictedEarly === 0) return
    counters.evictedEarly += evictedEarly
    if (this.#told.has(sid)) return
    this.#told.add(sid)
    if (this.#told.size > 10_000) this.#told.clear()
    warn({ sid }, 'events are evicted inside the retention window: the session writes more than maxEvents or maxBytes holds')
  }

  #appender (sid: string, stream: string, open: Append['open'], onOverflow: () => void): Appender {
    const { log, replica, counters, maxQueuedBytes, warn } = this.#options
    return new Appender({
      log,
      sid,
      stream,
      replica,
      open,
      maxQueuedBytes,
      nextToken: this.nextToken,
      holeNotice: dropped => encodeJson({
        jsonrpc: '2.0',
        method: 'notifications/message',
        params: { level: 'error', logger: 'fastify-mcp-resume', data: { outcome: 'gap', cause: 'dropped', missed: dropped } }
      }),
      onAppended: reply => this.deliver(sid, stream, reply),
      onOverflow: () => {
        counters.overflowed++
        warn({ sid, stream }, 'more messages wait for the log than maxQueuedBytes allows; they are dropped')
        onOverflow()
      }
    })
  }
}
