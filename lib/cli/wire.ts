import { request as httpRequest } from 'node:http'
import type { ClientRequest, IncomingMessage } from 'node:http'
import { request as httpsRequest } from 'node:https'
import { createParser } from 'eventsource-parser'

/** A JSON-RPC message as it came, unchecked. */
export interface Message {
  readonly id?: string | number | null
  readonly method?: string
  readonly params?: Readonly<Record<string, unknown>>
  readonly result?: Readonly<Record<string, unknown>>
  readonly error?: { readonly code?: number, readonly message?: string, readonly data?: unknown }
}

/** One SSE event as it came. */
export interface Frame {
  readonly atMs: number
  readonly id?: string
  readonly event?: string
  /** Empty for a frame that only carries an ID. */
  readonly messages: readonly Message[]
  /** Data that is no JSON-RPC message, shortened. */
  readonly text?: string
}

/** What one HTTP exchange looked like from outside; grows while it lasts. */
export interface Trace {
  readonly method: 'GET' | 'POST' | 'DELETE'
  readonly url: string
  readonly cursor?: string
  readonly openedMs: number
  status?: number
  contentType?: string
  /** The `Mcp-Resume` header. */
  outcome?: string
  /** The answer when it is not SSE, shortened. */
  body?: string
  readonly frames: Frame[]
  /** Frames of a stalled connection: sent, but not read by the client that stalled. */
  readonly unread: Frame[]
  retryMs?: number
  closedMs?: number
  closedBy?: 'server' | 'probe' | 'error'
  error?: string
}

export interface Exchange {
  readonly url: URL
  readonly method: Trace['method']
  readonly headers: Readonly<Record<string, string>>
  readonly body?: unknown
  /** Looked at after every frame; when it holds the connection is cut, or left open and not read any more. */
  readonly stop?: Stop
  /** No wait goes beyond this moment of `performance.now()`. */
  readonly deadline: number
}

export interface Stop {
  readonly how: 'cut' | 'stall'
  when (frames: readonly Frame[]): boolean
}

const MAX_BODY = 16 * 1024 * 1024
const BODY_EXCERPT = 300

/** One HTTP exchange on a socket of its own, so that cutting it cuts nothing else. */
export class Connection {
  readonly trace: Trace
  readonly #exchange: Exchange
  readonly #request: ClientRequest
  readonly #waiting = new Set<() => void>()
  #response: IncomingMessage | undefined
  #stalled = false
  #body = ''
  #json: readonly Message[] = []

  constructor (exchange: Exchange) {
    const { url, method, headers, body } = exchange
    this.#exchange = exchange
    const header = headers['last-event-id']
    const cursor = header === undefined ? undefined : Buffer.from(header, 'latin1').toString('utf8')
    this.trace = {
      method, url: url.href, ...(cursor !== undefined && { cursor }), openedMs: performance.now(), frames: [], unread: []
    }
    const request = url.protocol === 'https:' ? httpsRequest : httpRequest
    this.#request = request(url, { method, headers, agent: false })
    this.#request.on('response', response => this.#read(response))
    this.#request.on('error', error => this.#close(this.trace.status === undefined ? 'error' : 'server', error))
    this.#request.end(body === undefined ? undefined : JSON.stringify(body))
  }

  get answered (): boolean {
    return this.trace.status !== undefined
  }

  get closed (): boolean {
    return this.trace.closedBy !== undefined
  }

  get streams (): boolean {
    return this.trace.status === 200 && (this.trace.contentType ?? '').startsWith('text/event-stream')
  }

  header (name: string): string | undefined {
    const value = this.#response?.headers[name]
    return Array.isArray(value) ? value.join(', ') : value
  }

  /** Every JSON-RPC message so far, from SSE or from a JSON body. */
  get messages (): readonly Message[] {
    return this.streams ? this.trace.frames.flatMap(frame => frame.messages) : this.#json
  }

  /** Waits until the condition holds, the exchange is over or the time is up; says whether the condition holds. */
  async wait (condition: () => boolean, timeoutMs: number): Promise<boolean> {
    const ms = Math.min(timeoutMs, this.#exchange.deadline - performance.now())
    if (condition() || this.closed || ms <= 0) return condition()
    await new Promise<void>(resolve => {
      const check = (): void => {
        if (condition() || this.closed) done()
      }
      const done = (): void => {
        clearTimeout(timer)
        this.#waiting.delete(check)
        resolve()
      }
      const timer = setTimeout(done, ms)
      this.#waiting.add(check)
    })
    return condition()
  }

  /** Drops the connection the way a dying network does; what arrives later is not seen. */
  cut (): void {
    this.#close('probe')
  }

  /** Reads what a stalled connection was sent meanwhile; it is recorded apart, since its client never saw it. */
  unstall (): void {
    this.#response?.resume()
  }

  #read (response: IncomingMessage): void {
    this.#response = response
    const type = response.headers['content-type']
    const outcome = response.headers['mcp-resume']
    if (type !== undefined) this.trace.contentType = type
    if (typeof outcome === 'string') this.trace.outcome = outcome
    response.setEncoding('utf8')
    response.on('error', error => this.#close('server', error))
    response.on('close', () => this.#close('server'))
    this.trace.status = response.statusCode ?? 0
    if (this.streams) this.#readEvents(response)
    else this.#readBody(response)
    this.#poke()
  }

  #readEvents (response: IncomingMessage): void {
    let id: string | undefined
    // An ID alone in a block moves a client's cursor although no event is dispatched; it counts as a frame.
    const parser = createParser({
      maxBufferSize: MAX_BODY,
      onId: value => {
        flush()
        id = value
      },
      onEvent: event => {
        id = undefined
        this.#take(event.id, event.event, event.data)
      },
      onRetry: ms => {
        this.trace.retryMs = ms
      }
    })
    const flush = (): void => {
      if (id !== undefined) this.#take(id, undefined, '')
      id = undefined
    }
    response.on('data', (text: string) => {
      if (this.closed) return
      try {
        parser.feed(text)
      } catch (error) {
        this.#close('server', error as Error)
      }
      flush()
      this.#poke()
    })
    response.on('end', () => this.#close('server'))
  }

  #take (id: string | undefined, event: string | undefined, data: string): void {
    // The client is gone after the cut; the rest of the same chunk is not its business.
    if (this.closed) return
    const messages = parseMessages(data)
    const frame: Frame = {
      atMs: performance.now(),
      messages,
      ...(id !== undefined && { id }),
      ...(event !== undefined && { event }),
      ...(data !== '' && messages.length === 0 && { text: data.slice(0, BODY_EXCERPT) })
    }
    if (this.#stalled) {
      this.trace.unread.push(frame)
      return
    }
    this.trace.frames.push(frame)
    const { stop } = this.#exchange
    if (stop === undefined || !stop.when(this.trace.frames)) return
    if (stop.how === 'cut') {
      this.cut()
    } else {
      this.#stalled = true
      this.#response?.pause()
    }
  }

  #readBody (response: IncomingMessage): void {
    response.on('data', (text: string) => {
      if (this.#body.length < MAX_BODY) this.#body += text
    })
    response.on('end', () => {
      this.trace.body = this.#body.slice(0, BODY_EXCERPT)
      this.#json = parseMessages(this.#body)
      this.#close('server')
    })
  }

  #close (by: NonNullable<Trace['closedBy']>, error?: Error): void {
    // 'end', 'error' and 'close' may all come, and all after our own cut.
    if (this.closed) return
    this.trace.closedBy = by
    this.trace.closedMs = performance.now()
    if (error !== undefined) this.trace.error = 'code' in error ? String(error.code) : error.message
    this.#request.destroy()
    this.#poke()
  }

  #poke (): void {
    for (const check of [...this.#waiting]) check()
  }
}

function parseMessages (text: string): readonly Message[] {
  if (text.trim() === '') return []
  try {
    const value: unknown = JSON.parse(text)
    const list = Array.isArray(value) ? value : [value]
    return list.filter((item): item is Message => typeof item === 'object' && item !== null)
  } catch {
    return []
  }
}
