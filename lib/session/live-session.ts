import { AsyncLocalStorage } from 'node:async_hooks'
import { NotAppended, ServerFailed, VersionChanged } from '../errors.ts'
import { STANDALONE } from '../event-id.ts'
import type { Carrier, SessionRecord } from '../log/log.ts'
import { randomText } from '../log/tags.ts'
import { encodeJson } from '../sse.ts'
import { Call, digestOf, type AnswerMode } from './call.ts'
import type { Context, McpServerLike, McpTransport, MessageExtra, SendOptions } from './context.ts'
import { isCancellation, isObject, isRequest, isResponse, type RpcId, type RpcMessage, type RpcNotification, type RpcRequest, type RpcResponse } from './jsonrpc.ts'
import { KnownRecord } from './known-record.ts'
import { lostResponse } from './lost.ts'

const FEED_MS = 10_000
/** How long a handler that awaits a notification is held while the log is away; the message goes on waiting. */
const HOLD_MS = 10_000

/** The call that the code running now belongs to: the SDK does not name it for every server request. */
const running = new AsyncLocalStorage<Call>()

/**
 * A session that is live on this replica: an SDK server of the host's, and the transport that joins it to the log.
 * Nothing here outlives the process that matters: the record and the streams are in the log.
 */
export class LiveSession implements McpTransport {
  readonly sessionId: string
  onmessage?: ((message: any, extra?: any) => void) | undefined
  onclose?: (() => void) | undefined
  onerror?: ((error: Error) => void) | undefined
  /** When the server last took in or sent a message, in ms of the monotonic clock. */
  lastUsed = performance.now()
  readonly calls = new Map<string, Call>()
  readonly known = new KnownRecord()
  readonly #context: Context
  readonly #server: McpServerLike
  #closed = false
  /** What the server declared itself; the client may have been told more. */
  #capabilities: Record<string, unknown> = {}
  /** While the server is fed its past, what it sends is not for the client. */
  #reviving = false
  /** Requests of ours that the server has yet to answer. */
  readonly #feeds = new Map<RpcId, (response: RpcResponse) => void>()
  /** Requests to the client wait for its `notifications/initialized`. */
  #initialized = false
  readonly #heldBack: Array<() => void> = []
  /** Messages wait until the session is in the log. */
  #created: Promise<void> = Promise.resolve()

  private constructor (context: Context, sid: string, server: McpServerLike) {
    this.#context = context
    this.sessionId = sid
    this.#server = server
  }

  /** Makes a server for a new session; `answer` is its answer to `initialize`. */
  static async start (context: Context, sid: string, request: RpcRequest, extra: MessageExtra): Promise<{ session: LiveSession, answer: RpcResponse, created: () => void }> {
    const session = new LiveSession(context, sid, await makeServer(context, sid))
    let created = (): void => {}
    session.#created = new Promise(resolve => { created = resolve })
    try {
      await session.#server.connect(session)
      const answer = await session.#feed({ ...request, id: 'initialize' }, extra)
      const capabilities = answer.result?.capabilities
      if (isObject(capabilities)) session.#capabilities = capabilities
      return { session, answer: { ...answer, id: request.id }, created }
    } catch (error) {
      await session.close()
      throw error
    }
  }

  /** Makes a server for a session that is in the log, and feeds it what it missed. */
  static async revive (context: Context, sid: string, record: SessionRecord): Promise<LiveSession> {
    const session = new LiveSession(context, sid, await makeServer(context, sid))
    session.#reviving = true
    try {
      await session.#server.connect(session)
      const params = { ...record.initialize, protocolVersion: record.version }
      const answer = await session.#feed({ jsonrpc: '2.0', id: 'initialize', method: 'initialize', params }, {})
      if (answer.result?.protocolVersion !== record.version) {
        throw new VersionChanged(record.version)
      }
      if (isObject(answer.result.capabilities)) session.#capabilities = answer.result.capabilities
      await session.update(record)
      session.#reviving = false
      return session
    } catch (error) {
      await session.close()
      throw error
    }
  }

  get closed (): boolean {
    return this.#closed
  }

  /** No call runs. */
  get idle (): boolean {
    return this.calls.size === 0
  }

  /** A request of the server waits for the client's answer. */
  get asking (): boolean {
    return this.#context.requests.waits(this)
  }

  declares (capability: string): boolean {
    return isObject(this.#capabilities[capability])
  }

  /** Tells the server what changed in the record through another replica, or before this server was made. */
  async update (record: SessionRecord): Promise<void> {
    if (record.initialized && !this.#initialized) this.receive({ jsonrpc: '2.0', method: 'notifications/initialized' }, {})
    for (const { capability, method, params } of this.known.learn(record)) {
      if (this.declares(capability)) await this.#feed({ jsonrpc: '2.0', id: `feed-${randomText(8)}`, method, params }, {})
    }
  }

  /** Takes in a request. The handler starts with `begin`. */
  call (request: RpcRequest, mode: AnswerMode, carrier: Carrier | undefined): Call {
    const id = randomText(8)
    const open = { request: { id: request.id, method: request.method, digest: digestOf(request) }, carrier }
    const appender = this.#context.outbox.request(this.sessionId, id, open, () => { void this.#giveUp(call) })
    const call: Call = new Call({ id, request, mode, appender, elsewhere: message => this.#sendStandalone(message) })
    this.calls.set(id, call)
    this.lastUsed = performance.now()
    return call
  }

  /** Runs the handler of a call whose opening is logged, or that needs none. */
  begin (call: Call, extra: MessageExtra): void {
    running.run(call, () => this.onmessage?.({ ...call.request, id: call.id }, extra))
  }

  /** Takes in a notification, or the answer to a server request under the server's own id. */
  receive (message: RpcNotification | RpcResponse, extra: MessageExtra): void {
    this.lastUsed = performance.now()
    if ('method' in message && message.method === 'notifications/initialized') {
      this.#initialized = true
      for (const release of this.#heldBack.splice(0)) release()
    }
    this.onmessage?.(message, extra)
  }

  /** Cancels a call: the handler's signal is aborted, its stream ends without a response. */
  async cancel (call: Call, params: Record<string, unknown>): Promise<void> {
    if (!this.calls.delete(call.id)) return
    this.onmessage?.({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { ...params, requestId: call.id } })
    await call.cancel().catch(error => this.#dropped(error, call.id))
  }

  /** Ends a call whose messages cannot all be kept: its handler is aborted, its client told. */
  async #giveUp (call: Call): Promise<void> {
    if (!this.calls.delete(call.id)) return
    this.onmessage?.({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: call.id, reason: 'More messages wait than the server may hold' } })
    call.onResult = undefined
    await call.respond(lostResponse({ ...call.request, digest: '' })).catch(error => this.#dropped(error, call.id))
  }

  async start (): Promise<void> {}

  /**
   * The SDK's way out. Never rejects for a notification or a response, since a server that does not await would end the
   * process; what the log refuses is counted. Rejects for a request that cannot be sent.
   */
  async send (message: RpcMessage, options?: SendOptions): Promise<void> {
    if (isResponse(message)) return await this.#respond(message)
    if (this.#reviving || this.#closed) return
    this.lastUsed = performance.now()
    if (isCancellation(message) && await this.#withdraw(message)) return
    const related = options?.relatedRequestId
    const call = related === undefined ? (isRequest(message) ? this.#currentCall() : undefined) : this.calls.get(String(related))
    if (related !== undefined && call === undefined) {
      this.#dropped(new NotAppended(String(related), 'its request is over'), String(related))
      if (isRequest(message)) throw new NotAppended(String(related), 'its request is over')
      return
    }
    if (isRequest(message)) {
      if (message.method !== 'ping') await this.#whenInitialized()
      await this.#ask(call, message)
    } else {
      await this.#held(this.#sendTo(call, message).catch(error => this.#refused(error, call)))
    }
  }

  /** Lets the server go; the session lives on in the log. */
  async close (): Promise<void> {
    if (this.#closed) return
    this.#closed = true
    for (const call of this.calls.values()) call.abandon()
    this.calls.clear()
    this.#context.requests.forget(this)
    for (const release of this.#heldBack.splice(0)) release()
    this.onclose?.()
  }

  async #respond (response: RpcResponse): Promise<void> {
    const feed = this.#feeds.get(response.id)
    if (feed !== undefined) return feed(response)
    const call = this.calls.get(String(response.id))
    if (call === undefined) return this.#dropped(new NotAppended(String(response.id), 'its request is over'), String(response.id))
    await call.respond(response).catch(error => this.#dropped(error, call.id))
    this.calls.delete(call.id)
    this.lastUsed = performance.now()
  }

  #currentCall (): Call | undefined {
    const call = running.getStore()
    return call !== undefined && this.calls.get(call.id) === call && !call.over ? call : undefined
  }

  async #sendTo (call: Call | undefined, message: RpcMessage): Promise<void> {
    if (call === undefined) await this.#sendStandalone(message)
    else await call.emit(message)
  }

  async #sendStandalone (message: RpcMessage): Promise<void> {
    await this.#created
    await this.#context.outbox.standalone(this.sessionId).append(encodeJson(message))
  }

  /** Sends a request to the client under its name on the wire, its progress token with it. */
  async #ask (call: Call | undefined, message: RpcRequest): Promise<void> {
    const { requests } = this.#context
    const id = requests.name(this, message.id, call?.id)
    const { _meta: meta, ...rest } = message.params ?? {}
    const tokens = isObject(meta) && meta.progressToken === message.id ? { ...meta, progressToken: id } : meta
    try {
      await this.#sendTo(call, { ...message, id, ...message.params === undefined ? {} : { params: { ...rest, ...meta === undefined ? {} : { _meta: tokens } } } })
    } catch (error) {
      requests.take(id)
      throw error
    }
  }

  /**
   * The server gives one of its requests up: the cancellation follows it by the name it has on the wire, or goes to the
   * standalone stream when its own is over.
   *
   * @returns false when no such request waits
   */
  async #withdraw (message: RpcNotification): Promise<boolean> {
    const withdrawn = this.#context.requests.withdraw(this, message.params?.requestId as RpcId)
    if (withdrawn === undefined) return false
    const call = this.calls.get(withdrawn.stream ?? '')
    const renamed = { ...message, params: { ...message.params, requestId: withdrawn.wireId } }
    await this.#held(this.#sendTo(call, renamed).catch(error => this.#refused(error, call)))
    return true
  }

  async #whenInitialized (): Promise<void> {
    if (this.#initialized) return
    await new Promise<void>(resolve => this.#heldBack.push(resolve))
    if (this.#closed) throw new NotAppended(STANDALONE, 'the session was let go before it was initialized')
  }

  /** Waits for `sent`, but not without bound. */
  async #held (sent: Promise<unknown>): Promise<void> {
    let timer: NodeJS.Timeout | undefined
    await Promise.race([sent, new Promise(resolve => { timer = setTimeout(resolve, HOLD_MS).unref() })])
    clearTimeout(timer)
  }

  /** Gives the server a request of its past and waits for the answer. */
  async #feed (request: RpcRequest, extra: MessageExtra): Promise<RpcResponse> {
    let timer: NodeJS.Timeout | undefined
    try {
      return await new Promise<RpcResponse>((resolve, reject) => {
        timer = setTimeout(() => reject(new ServerFailed(`no answer to ${request.method} within ${FEED_MS} ms`)), FEED_MS)
        this.#feeds.set(request.id, resolve)
        this.onmessage?.(request, extra)
      })
    } finally {
      this.#feeds.delete(request.id)
      clearTimeout(timer)
    }
  }

  /** What the log refuses for good: the call's stream is finished elsewhere, so its handler need not go on. */
  #refused (error: unknown, call: Call | undefined): void {
    this.#dropped(error, call?.id ?? STANDALONE)
    if (call !== undefined) void this.cancel(call, { reason: 'The request is over' })
  }

  #dropped (error: unknown, stream: string): void {
    this.#context.counters.dropped++
    this.#context.warn({ err: error, sid: this.sessionId, stream }, 'a message was dropped: it could not be logged')
  }
}

async function makeServer (context: Context, sid: string): Promise<McpServerLike> {
  let server: McpServerLike
  try {
    server = await context.makeServer(sid)
  } catch (error) {
    throw new ServerFailed((error as Error)?.message ?? String(error))
  }
  if (typeof server?.connect !== 'function') throw new ServerFailed('it has no connect method')
  return server
}
