import { createParser, type EventSourceMessage } from 'eventsource-parser'
import { createResumeGuard, type ResumeGap, type ResumeGuard, type ResumeGuardOptions, type ResumeSequenceError } from '../../lib/client/index.ts'

const url = 'http://127.0.0.1/mcp'

/** A `fetch` whose every answer the test writes itself. */
export interface ScriptedFetch {
  readonly fetch: (url: string | URL, init?: RequestInit) => Promise<Response>
  /** The next request that was not taken yet. */
  next (): Promise<ScriptedRequest>
  /** Requests that nobody took. */
  readonly waiting: number
}

export interface ScriptedRequest {
  readonly method: string
  readonly headers: Headers
  /** The cursor that was sent, if any. */
  readonly cursor: string | null
  /** Answers with an event stream, unless the headers say otherwise. */
  respond (headers?: Record<string, string>, status?: number): ScriptedBody
  /** Rejects the fetch. */
  fail (error: Error): void
}

/** A response body. Whatever is sent is read before an end or a failure shows, as on a socket. */
export interface ScriptedBody {
  send (chunk: string | Uint8Array): void
  end (): void
  fail (error: Error): void
  /** How many chunks were asked for. */
  readonly taken: number
  readonly cancelled: boolean
}

export function scriptFetch (): ScriptedFetch {
  const requests: ScriptedRequest[] = []
  let wake = (): void => {}
  return {
    fetch: (_url, init) => new Promise((resolve, reject) => {
      const headers = new Headers(init?.headers)
      requests.push({
        method: init?.method ?? 'GET',
        headers,
        cursor: headers.get('last-event-id'),
        respond (given = {}, status = 200) {
          const { body, stream } = scriptBody()
          const empty = status === 204 || status === 405
          resolve(new Response(empty ? null : stream, { status, headers: empty ? given : { 'content-type': 'text/event-stream', ...given } }))
          return body
        },
        fail: reject
      })
      wake()
    }),
    async next () {
      if (requests.length === 0) await new Promise<void>(resolve => { wake = resolve })
      return requests.shift()!
    },
    get waiting () { return requests.length }
  }
}

function scriptBody (): { body: ScriptedBody, stream: ReadableStream<Uint8Array> } {
  const steps: Array<(controller: ReadableStreamDefaultController<Uint8Array>) => void> = []
  let wake = (): void => {}
  let taken = 0
  let cancelled = false
  const add = (step: (typeof steps)[number]): void => {
    steps.push(step)
    wake()
  }
  const body: ScriptedBody = {
    send: chunk => add(controller => {
      taken++
      controller.enqueue(typeof chunk === 'string' ? new TextEncoder().encode(chunk) : chunk)
    }),
    end: () => add(controller => controller.close()),
    fail: error => add(controller => controller.error(error)),
    get taken () { return taken },
    get cancelled () { return cancelled }
  }
  const stream = new ReadableStream<Uint8Array>({
    async pull (controller) {
      if (steps.length === 0) await new Promise<void>(resolve => { wake = resolve })
      steps.shift()?.(controller)
    },
    cancel () {
      cancelled = true
      wake()
    }
  }, { highWaterMark: 0 })
  return { body, stream }
}

/** What a stock SDK client makes of an event stream. */
export interface StockReader {
  /** The data of every message, in order. */
  readonly messages: readonly string[]
  /** The ID that it would send when it comes back: the last one of this connection. */
  readonly lastEventId: string | undefined
  /** `end`, or what the stream failed with. */
  readonly ended: Promise<unknown>
  /** The same, as long as it is open undefined. */
  readonly outcome: unknown
  cancel (): Promise<void>
}

/** Reads as the stock clients do: a decoder and an SSE parser in a pipe, one event after the other. */
export function readAsStock (response: Response): StockReader {
  const messages: string[] = []
  let lastEventId: string | undefined
  let outcome: unknown
  const parsed: EventSourceMessage[] = []
  const parser = createParser({ onEvent: event => parsed.push(event) })
  const events = new TransformStream<string, EventSourceMessage>({
    transform (chunk, controller) {
      parser.feed(chunk)
      for (const event of parsed.splice(0)) controller.enqueue(event)
    }
  })
  const reader = response.body!.pipeThrough(new TextDecoderStream() as never).pipeThrough(events).getReader()
  const ended = (async () => {
    try {
      for (;;) {
        const { done, value } = await reader.read()
        if (done) return 'end'
        if (value.id) lastEventId = value.id
        if (value.data !== '') messages.push(value.data)
      }
    } catch (error) {
      return error
    }
  })()
  ended.then(value => { outcome = value }, () => {})
  return {
    messages,
    ended,
    get lastEventId () { return lastEventId },
    get outcome () { return outcome },
    cancel: () => reader.cancel()
  }
}

/** Everything that can happen without a new event from outside has happened. */
export async function settle (): Promise<void> {
  for (let i = 0; i < 3; i++) await new Promise(resolve => setImmediate(resolve))
}

/** One connection of a stock client through a guard, up to the answer. */
export interface GuardedConnection {
  readonly body: ScriptedBody
  readonly reader: StockReader
  /** The cursor that the server saw. */
  readonly cursor: string | null
}

export interface ConnectOptions {
  /** `POST` opens a request's stream. @default 'GET' */
  readonly method?: 'GET' | 'POST'
  /** The cursor that the client itself sends. */
  readonly claimed?: string | undefined
  /** @default 's' */
  readonly session?: string
  /** The answer's `Mcp-Resume`. */
  readonly signal?: string | undefined
}

/** A guard on a scripted server. */
export interface GuardSetting {
  readonly server: ScriptedFetch
  readonly guard: ResumeGuard
  readonly gaps: ResumeGap[]
  readonly violations: ResumeSequenceError[]
  /** Opens a connection as a stock client does, and answers it. */
  connect (options?: ConnectOptions): Promise<GuardedConnection>
  /** A whole connection: its frames, and then a reset. */
  cut (frames: readonly string[], options?: ConnectOptions): Promise<GuardedConnection>
  /** A GET that the test answers itself. */
  ask (claimed?: string): { readonly response: Promise<Response>, readonly request: Promise<ScriptedRequest> }
}

export function setUpGuard (options: Partial<ResumeGuardOptions> = {}): GuardSetting {
  const server = scriptFetch()
  const gaps: ResumeGap[] = []
  const violations: ResumeSequenceError[] = []
  const guard = createResumeGuard({
    onGap (gap) { gaps.push(gap) },
    onViolation (error) { violations.push(error) },
    fetch: server.fetch,
    ...options
  })
  return { server, guard, gaps, violations, connect, cut, ask }

  async function connect ({ method = 'GET', claimed, session = 's', signal }: ConnectOptions = {}): Promise<GuardedConnection> {
    const pending = guard.fetch(url, {
      method,
      headers: {
        accept: method === 'GET' ? 'text/event-stream' : 'application/json, text/event-stream',
        'mcp-session-id': session,
        ...claimed !== undefined && { 'last-event-id': claimed }
      },
      ...method === 'POST' && { body: '{}' }
    })
    const request = await Promise.race([server.next(), pending.then(() => { throw new Error('answered without the server') })])
    const body = request.respond(signal === undefined ? {} : { 'mcp-resume': signal })
    return { body, reader: readAsStock(await pending), cursor: request.cursor }
  }

  async function cut (frames: readonly string[], options?: ConnectOptions): Promise<GuardedConnection> {
    const connection = await connect(options)
    for (const frame of frames) connection.body.send(frame)
    connection.body.fail(new Error('reset'))
    await connection.reader.ended
    return connection
  }

  function ask (claimed?: string): ReturnType<GuardSetting['ask']> {
    const headers = { accept: 'text/event-stream', 'mcp-session-id': 's', ...claimed !== undefined && { 'last-event-id': claimed } }
    return { response: guard.fetch(url, { headers }), request: server.next() }
  }
}
