import { createHash } from 'node:crypto'
import { RpcCode } from '../errors.ts'
import type { EventId } from '../event-id.ts'
import type { Appender } from '../log/appender.ts'
import { encodeJson } from '../sse.ts'
import { rpcError, type RpcId, type RpcMessage, type RpcRequest, type RpcResponse } from './jsonrpc.ts'
import { lostResponse } from './lost.ts'

/**
 * How a request is answered. `stream`: on a stream of its own from the first byte. `quick`: as plain JSON, unless it
 * emits a message first or takes longer than a second; then on a stream. `json`: as plain JSON, whatever it takes.
 */
export type AnswerMode = 'stream' | 'quick' | 'json'

export type Answer =
  | { readonly kind: 'json', readonly response: RpcResponse }
  /** The stream is open, at this event. */
  | { readonly kind: 'stream', readonly opening: EventId }
  /** It was cancelled before there was an answer. */
  | { readonly kind: 'cancelled' }

export interface CallOptions {
  /** Name of the call's stream, and its id in the SDK server: the client's id may be in use twice. */
  readonly id: string
  readonly request: RpcRequest
  readonly mode: AnswerMode
  readonly appender: Appender
  /** Takes messages that belong to the call but cannot be sent with a plain JSON answer. */
  readonly elsewhere: (message: RpcMessage) => Promise<void>
}

const QUICK_MS = 1000

/** One request of a client while it runs here. */
export class Call {
  readonly id: string
  readonly request: RpcRequest
  /** Settles when it is known how the request is answered; rejects when its stream cannot be opened. */
  readonly answer: Promise<Answer>
  /** Called before a result (not an error) is sent. */
  onResult: (() => Promise<void>) | undefined
  /** The first event of its stream, once that is open. */
  opening: EventId | undefined
  readonly #options: CallOptions
  #settle!: (answer: Answer) => void
  #fail!: (error: Error) => void
  #streaming = false
  #over = false
  #timer: NodeJS.Timeout | undefined

  constructor (options: CallOptions) {
    this.#options = options
    this.id = options.id
    this.request = options.request
    this.answer = new Promise((resolve, reject) => {
      this.#settle = resolve
      this.#fail = reject
    })
    this.answer.catch(() => { /* whoever waits for it hears of it; nobody may */ })
    if (options.mode === 'stream') this.#stream()
    if (options.mode === 'quick') this.#timer = setTimeout(() => this.#stream(), QUICK_MS)
  }

  get clientId (): RpcId {
    return this.request.id
  }

  /** The response is logged or handed over, or the call was cancelled. */
  get over (): boolean {
    return this.#over
  }

  /** Sends a message that belongs to this call. Resolves when it is logged. */
  async emit (message: RpcMessage): Promise<void> {
    if (this.#options.mode === 'json') {
      await this.#options.elsewhere(message)
      return
    }
    this.#stream()
    await this.#options.appender.append(encodeJson(message))
  }

  /** Sends the final response, under the client's own id. */
  async respond (response: RpcResponse): Promise<void> {
    const final = { ...response, id: this.clientId }
    clearTimeout(this.#timer)
    this.#over = true
    if (response.error === undefined) await this.onResult?.()
    if (this.#streaming) await this.#options.appender.append(encodeResponse(final), true)
    else this.#settle({ kind: 'json', response: final })
  }

  /** Ends the call without a response. */
  async cancel (): Promise<void> {
    clearTimeout(this.#timer)
    this.#over = true
    if (this.#streaming) await this.#options.appender.finish()
    else this.#settle({ kind: 'cancelled' })
  }

  /** The call is given up, with its session or because its stream could not be opened; who waits for plain JSON is told. */
  abandon (): void {
    clearTimeout(this.#timer)
    this.#over = true
    this.#options.appender.abandon()
    if (!this.#streaming) this.#settle({ kind: 'json', response: lostResponse({ ...this.request, digest: '' }) })
  }

  #stream (): void {
    if (this.#streaming) return
    this.#streaming = true
    clearTimeout(this.#timer)
    this.#options.appender.append('').then(opening => {
      this.opening = opening
      this.#settle({ kind: 'stream', opening })
    }, this.#fail)
  }
}

/** A result that is no JSON (a cycle, a BigInt) must not leave the client waiting. */
function encodeResponse (response: RpcResponse): string {
  try {
    return encodeJson(response)
  } catch (error) {
    return encodeJson(rpcError(response.id, RpcCode.internal, `The result is not JSON: ${(error as Error).message}`))
  }
}

/** Tells a request that was sent again from another one under the same id. */
export function digestOf ({ id, method, params }: RpcRequest): string {
  return createHash('sha256').update(JSON.stringify([id, method, params])).digest('base64url').slice(0, 22)
}
