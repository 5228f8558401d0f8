import type { OutgoingHttpHeaders } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Carriers } from '../carriers.ts'
import { Connection } from '../connection.ts'
import { Delivery, readPage, type Framing } from '../delivery.ts'
import { STANDALONE, formatEventId, type EventId } from '../event-id.ts'
import type { Attached, Carrier, Log, Page } from '../log/log.ts'
import { patiently } from '../log/patience.ts'
import { randomText } from '../log/tags.ts'
import type { Config } from '../options.ts'
import { encodeComment, encodeCursor, encodeMessage, encodeRetry } from '../sse.ts'
import { readsEmptyData } from './announce.ts'
import { failsOnRetry } from './headers.ts'

export interface StreamsOptions {
  readonly config: Config
  readonly log: Log
  readonly replica: string
  readonly carriers: Carriers
}

export interface Opening {
  readonly sid: string
  readonly stream: string
  readonly version: string
  readonly carrier: Carrier
  readonly fence: number
  /** The replica that runs the stream's request. */
  readonly runner: string
  readonly takeovers: number
  readonly position: EventId
  readonly anchored: boolean
  /** Value of `Mcp-Resume`, for the answer to a GET. */
  readonly resume: string | undefined
  /** The first bytes of the body. */
  readonly first: string
  /** Nothing follows `first`. */
  readonly ended: boolean
  /** There may be events to read already. */
  readonly read: boolean
  /** What was read when the connection became the carrier. */
  readonly arrival?: Arrival | undefined
}

/** A connection has become a stream's carrier. */
export interface Arrival {
  readonly attached: Attached
  /** The first events after its position. */
  readonly page: Page | undefined
}

/** Turns a reply into an SSE response that carries a stream. */
export class Streams {
  readonly #options: StreamsOptions
  #connections = 0
  #closing = false
  #over = false

  constructor (options: StreamsOptions) {
    this.#options = options
  }

  get over (): boolean {
    return this.#over
  }

  /** A name for a connection that is about to be. */
  nextCarrier (): Carrier {
    return { replica: this.#options.replica, connection: `c${(++this.#connections).toString(36)}` }
  }

  /** The first frame of a request's stream: a cursor before any message, for clients that can read it. */
  opening (version: string, id: EventId): string {
    return this.#options.config.resumable && readsEmptyData(version) ? encodeCursor(formatEventId(id)) : encodeComment('open')
  }

  /**
   * Makes a connection the carrier of a stream, and reads the first page for it in the same round trip.
   *
   * @returns undefined when the session or the stream is gone
   */
  async attach (sid: string, stream: string, carrier: Carrier, position: EventId, anchored: boolean): Promise<Arrival | undefined> {
    const { config, log } = this.#options
    // In this order on one connection, so that the page is read by the carrier.
    const [attached, page] = await patiently(config.patienceMs, async () =>
      await Promise.all([log.attach(sid, stream, carrier), readPage(log, sid, stream, position, anchored)]))
    return attached === undefined ? undefined : { attached, page }
  }

  open (request: FastifyRequest, reply: FastifyReply, opening: Opening): void {
    const { config, log, carriers } = this.#options
    const { sid, stream, carrier, fence, runner, takeovers, position, anchored, resume, first, ended, read, arrival } = opening
    reply.hijack()
    const connection = new Connection({ id: carrier.connection, raw: reply.raw, keepAliveMs: config.keepAliveMs, stallMs: config.stallMs })
    const delivery = new Delivery({
      log,
      sid,
      stream,
      connection,
      carrier,
      fence,
      runner,
      position,
      anchored,
      framing: this.#framing(request, opening.version),
      onClose: () => {
        if (carriers.remove(delivery) && !delivery.finished) {
          // Where the stream stands is known well enough from its last tick if this cannot be written.
          log.detach(sid, stream, carrier, delivery.position).catch(() => {})
        }
      }
    })
    carriers.add(delivery, takeovers)
    delivery.open(sseHeaders(reply, { 'mcp-session-id': sid, ...resume === undefined ? {} : { 'mcp-resume': resume } }), first)
    if (ended) connection.end()
    else if (this.#over || (this.#closing && stream === STANDALONE)) delivery.leave()
    else if (arrival !== undefined) delivery.start(arrival.page)
    else if (read) delivery.wake()
  }

  /** A response of one frame, without an ID. */
  single (reply: FastifyReply, headers: OutgoingHttpHeaders, text: string): void {
    reply.hijack()
    reply.raw.on('error', () => {})
    reply.raw.writeHead(200, sseHeaders(reply, headers))
    reply.raw.end(text)
  }

  /** The last frame of a connection that the server ends, where the client can read it. */
  goodbye (request: FastifyRequest, version: string, id: string | undefined): string {
    const { retryMs } = this.#options.config
    const retry = failsOnRetry(request.raw) ? undefined : Math.round(retryMs * (1 + Math.random() / 2))
    if (id !== undefined && readsEmptyData(version)) return encodeCursor(id, retry)
    return retry === undefined ? '' : encodeRetry(retry)
  }

  /** Standalone streams end now, so that their clients move on; new ones end as soon as they are open. */
  leaveStandalone (): void {
    this.#closing = true
    for (const delivery of this.#options.carriers.all()) {
      if (delivery.stream === STANDALONE) delivery.leave()
    }
  }

  /** The grace is over: every stream ends, and no more calls are taken that could run on. */
  leaveAll (): void {
    this.#over = true
    for (const delivery of this.#options.carriers.all()) delivery.leave()
  }

  #framing (request: FastifyRequest, version: string): Framing {
    const { resumable } = this.#options.config
    const empty = readsEmptyData(version)
    return {
      event: ({ id, payload }) => {
        const text = resumable ? formatEventId(id) : undefined
        if (payload !== '') return encodeMessage(text, payload)
        return text !== undefined && empty ? encodeCursor(text) : ''
      },
      goodbye: position => this.goodbye(request, version, resumable && position.seq > 0 ? `${formatEventId(position)}.${randomText(2)}` : undefined)
    }
  }
}

const NOT_FOR_SSE = new Set(['content-length', 'content-encoding', 'transfer-encoding', 'content-type', 'etag'])

/** The head of an SSE response: what the host's hooks have set stays. */
function sseHeaders (reply: FastifyReply, own: OutgoingHttpHeaders): OutgoingHttpHeaders {
  const set = Object.entries(reply.getHeaders()).filter(([name]) => !NOT_FOR_SSE.has(name.toLowerCase()))
  return {
    ...Object.fromEntries(set) as OutgoingHttpHeaders,
    'content-type': 'text/event-stream',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no',
    ...own
  }
}
