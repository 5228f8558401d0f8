import { setTimeout as sleep } from 'node:timers/promises'
import { DuplicateRequest, LogAway, NotAppended, SessionGone } from '../errors.ts'
import type { EventId } from '../event-id.ts'
import type { Append, Appended, AppendReply, Log, NewEvent } from './log.ts'
import { newTag } from './tags.ts'

export interface AppenderOptions {
  readonly log: Log
  readonly sid: string
  readonly stream: string
  readonly replica: string
  /** Numbers this replica's appends; never the same twice. */
  readonly nextToken: () => number
  /** Given for a request's stream, which the first append opens. */
  readonly open?: Append['open']
  /** How many bytes of payload may wait before the stream is given up. */
  readonly maxQueuedBytes: number
  /** Called in order with every append that is in the log, before its promises resolve. */
  readonly onAppended: (reply: Appended) => void
  /** Called when more waits than may, once until there is room again: messages are lost. */
  readonly onOverflow: () => void
  /** What is appended after the messages that wait, before any later one, when some in between were lost. */
  readonly holeNotice: (dropped: number) => string
}

interface Waiting {
  readonly event: NewEvent | undefined
  readonly resolve: (id: EventId | undefined) => void
  readonly reject: (error: Error) => void
}

const MOST_EVENTS = 64
const MOST_BYTES = 1024 * 1024
const FIRST_RETRY_MS = 50
const LAST_RETRY_MS = 1000

/**
 * One stream's way into the log from this replica: at most one append in flight, so that the order is the order of
 * production whatever the Redis client does; what arrives meanwhile goes together in the next one. An append without an
 * answer is repeated under its token until its fate is known.
 */
export class Appender {
  readonly #options: AppenderOptions
  readonly #queue: Waiting[] = []
  #queuedBytes = 0
  #busy = false
  /** Messages refused since the queue overflowed. */
  #dropped = 0
  #abandoned = false

  constructor (options: AppenderOptions) {
    this.#options = options
  }

  /** Nothing waits and nothing is in flight. */
  get idle (): boolean {
    return !this.#busy
  }

  /**
   * Appends one message; resolves with its ID when it is in the log.
   *
   * @throws NotAppended when the log refuses it, or too much waits already; SessionGone when there is no such session
   * any more.
   */
  append (payload: string, final = false): Promise<EventId> {
    // A final response is taken in any case: the client waits for it, and nothing follows.
    if (!final && (this.#dropped > 0 || (this.#queuedBytes + payload.length > this.#options.maxQueuedBytes && this.#queue.length > 0))) {
      if (++this.#dropped === 1) this.#options.onOverflow()
      return Promise.reject(new NotAppended(this.#options.stream, 'more waits for the log than maxQueuedBytes allows'))
    }
    this.#queuedBytes += payload.length
    return this.#enqueue({ tag: newTag(), payload, final }) as Promise<EventId>
  }

  /** Finishes the stream without a final response, in order; no error if it is finished already. */
  async finish (): Promise<void> {
    await this.#enqueue(undefined)
  }

  /** Stops repeating appends of unknown fate: nobody waits for them any more. */
  abandon (): void {
    this.#abandoned = true
  }

  #enqueue (event: NewEvent | undefined): Promise<EventId | undefined> {
    return new Promise((resolve, reject) => {
      this.#queue.push({ event, resolve, reject })
      if (!this.#busy) void this.#drain()
    })
  }

  async #drain (): Promise<void> {
    this.#busy = true
    while (this.#queue.length > 0 || this.#dropped > 0) {
      if (this.#queue.length === 0) this.#pushHoleNotice()
      const batch = this.#take()
      const events = batch.flatMap(({ event }) => event ?? [])
      let reply: AppendReply
      try {
        reply = await this.#settle(events, batch.some(({ event }) => event === undefined))
        if (reply.status === 'appended') this.#options.onAppended(reply)
      } catch (error) {
        for (const { reject } of batch) reject(error as Error)
        continue
      }
      if (reply.status === 'appended') {
        let i = 0
        for (const { event, resolve } of batch) resolve(event === undefined ? undefined : reply.events[i++]!.id)
      } else if (reply.status === 'finished' && events.length === 0) {
        for (const { resolve } of batch) resolve(undefined)
      } else if (reply.status === 'duplicate') {
        for (const { reject } of batch) reject(new DuplicateRequest(reply.stream))
      } else {
        const { sid, stream } = this.#options
        const error = reply.status === 'gone' ? new SessionGone(sid) : new NotAppended(stream, `the log says "${reply.status}"`)
        for (const { reject } of batch) reject(error)
      }
    }
    this.#busy = false
  }

  /** A hole is announced before anything that comes after it. */
  #pushHoleNotice (): void {
    const payload = this.#options.holeNotice(this.#dropped)
    this.#dropped = 0
    this.#queuedBytes += payload.length
    this.#queue.push({ event: { tag: newTag(), payload, final: false }, resolve: () => {}, reject: () => {} })
  }

  /** The next messages that fit into one append; a finish goes with what is before it and ends the batch. */
  #take (): Waiting[] {
    let bytes = 0
    let count = 0
    for (const { event } of this.#queue) {
      const size = event?.payload.length ?? 0
      if (count > 0 && (count === MOST_EVENTS || bytes + size > MOST_BYTES)) break
      bytes += size
      count++
      if (event === undefined || event.final) break
    }
    this.#queuedBytes -= bytes
    return this.#queue.splice(0, count)
  }

  async #settle (events: readonly NewEvent[], finish: boolean): Promise<AppendReply> {
    const { log, sid, stream, replica, nextToken, open } = this.#options
    const opens = events[0]?.payload === ''
    const append: Append = { stream, events, finish, token: { replica, n: nextToken() }, open: opens ? open : undefined }
    const reply = await this.#repeat(() => log.append(sid, append))
    if (reply.status !== 'unknown' || open === undefined || events.length === 0) return reply
    // The log has lost the stream (a failover): this replica still runs its request, so it opens it again.
    const again: Append = { ...append, open, token: { replica, n: nextToken() } }
    return await this.#repeat(() => log.append(sid, again))
  }

  async #repeat (append: () => Promise<AppendReply>): Promise<AppendReply> {
    for (let wait = FIRST_RETRY_MS; ; wait = Math.min(wait * 2, LAST_RETRY_MS)) {
      try {
        return await append()
      } catch (error) {
        if (!(error instanceof LogAway) || this.#abandoned) throw error
      }
      await sleep(wait, undefined, { ref: false })
    }
  }
}
