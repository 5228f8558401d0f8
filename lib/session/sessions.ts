import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { LogAway, SessionGone, ServerFailed } from '../errors.ts'
import type { Carriers } from '../carriers.ts'
import type { Change, SessionRecord } from '../log/log.ts'
import { patiently } from '../log/patience.ts'
import type { Replica } from '../replica.ts'
import type { Call } from './call.ts'
import type { Context, MessageExtra } from './context.ts'
import { isObject, isResponse, type RpcId, type RpcNotification, type RpcRequest, type RpcResponse } from './jsonrpc.ts'
import { LiveSession } from './live-session.ts'
import { replicaOf } from './request-ids.ts'

export interface SessionsOptions {
  readonly context: Context
  readonly replica: Replica
  readonly carriers: Carriers
  readonly sessionTtlMs: number
  /** How long a session has to send `notifications/initialized`, in ms. */
  readonly handshakeMs: number
  /** A live instance that serves nothing for this long, in ms, is let go. */
  readonly idleMs: number
  /** How long a request waits for a log that is away, in ms. */
  readonly patienceMs: number
}

const SESSION_ID = /^[A-Za-z0-9_-]{32}$/
const MAINTAIN_MS = 5000
const SETTLE_MS = 20
const LEVELS = ['debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency']

/** The sessions that are live on this replica, and what crosses replicas about sessions. */
export class Sessions {
  readonly #options: SessionsOptions
  readonly #live = new Map<string, Promise<LiveSession>>()
  readonly #timer: NodeJS.Timeout

  constructor (options: SessionsOptions) {
    this.#options = options
    const { replica } = options
    replica.on('terminated', sid => { void this.#end(sid) })
    replica.on('changed', body => {
      const { sid, change, from } = JSON.parse(body) as { sid: string, change: Change, from: string }
      if (from !== replica.id) void this.#apply(sid, change)
    })
    replica.on('cancel', body => {
      const { sid, requestId, params } = JSON.parse(body) as { sid: string, requestId: RpcId, params: Record<string, unknown> }
      void this.#cancelHere(sid, requestId, params)
    })
    replica.on('answer', body => {
      const { sid, message } = JSON.parse(body) as { sid: string, message: RpcResponse | RpcNotification }
      this.#answerHere(sid, message)
    })
    // Often enough that no session expires between two looks.
    this.#timer = setInterval(() => { void this.#maintain() }, Math.min(MAINTAIN_MS, options.sessionTtlMs / 3)).unref()
  }

  get size (): number {
    return this.#live.size
  }

  /** Opens a session for an `initialize` request. Without a session ID the server refused it. */
  async initialize (request: RpcRequest, principal: string, extra: MessageExtra): Promise<{ sid: string | undefined, response: RpcResponse }> {
    const { context, handshakeMs, patienceMs } = this.#options
    const sid = randomBytes(24).toString('base64url')
    const { session, answer, created } = await LiveSession.start(context, sid, request, extra)
    const { result } = answer
    if (result === undefined) {
      await session.close()
      return { sid: undefined, response: answer }
    }
    // A notice of a gap is a log message, which a server may only send when it declared logging.
    const capabilities = { logging: {}, ...isObject(result.capabilities) ? result.capabilities : {} }
    const record: SessionRecord = {
      version: String(result.protocolVersion),
      initialize: request.params ?? {},
      capabilities,
      principal,
      initialized: false,
      logLevel: undefined,
      subscriptions: []
    }
    try {
      await patiently(patienceMs, () => context.log.create(sid, record, handshakeMs))
    } catch (error) {
      await session.close()
      throw error
    }
    this.#live.set(sid, Promise.resolve(session))
    created()
    return { sid, response: { ...answer, result: { ...result, capabilities } } }
  }

  /** The live instance of a session; makes one from its record. Concurrent first requests share it. */
  async get (sid: string, record: SessionRecord): Promise<LiveSession> {
    const known = this.#live.get(sid)
    if (known !== undefined) {
      const session = await known
      if (!session.closed) return session
    }
    const making = LiveSession.revive(this.#options.context, sid, record)
    this.#live.set(sid, making)
    try {
      return await making
    } catch (error) {
      if (this.#live.get(sid) === making) this.#live.delete(sid)
      if (error instanceof ServerFailed) await this.terminate(sid).catch(() => {})
      throw error
    }
  }

  /** Takes in a notification or an answer of the client. */
  async receive (sid: string, record: SessionRecord, message: RpcNotification | RpcResponse, extra: MessageExtra): Promise<void> {
    if (isResponse(message)) return await this.#answer(sid, message.id, message)
    const { method, params = {} } = message
    if (method === 'notifications/initialized') {
      await this.change(sid, { kind: 'initialized', ttlMs: this.#options.sessionTtlMs })
    } else if (method === 'notifications/cancelled') {
      await this.#cancel(sid, params.requestId as RpcId, params)
    } else if (method === 'notifications/progress' && replicaOf(params.progressToken) !== undefined) {
      await this.#answer(sid, params.progressToken as string, message)
    } else {
      (await this.get(sid, record)).receive(message, extra)
    }
  }

  /**
   * Answers what this plugin answers for the server: `logging/setLevel` where the server declares no logging.
   *
   * @returns undefined when the server has to.
   */
  async answerFor (session: LiveSession, request: RpcRequest): Promise<RpcResponse | undefined> {
    if (request.method !== 'logging/setLevel' || session.declares('logging')) return undefined
    const level = request.params?.level
    if (typeof level !== 'string' || !LEVELS.includes(level)) {
      return { jsonrpc: '2.0', id: request.id, error: { code: -32602, message: `level must be one of ${LEVELS.join(', ')}` } }
    }
    await this.change(session.sessionId, { kind: 'logLevel', level })
    return { jsonrpc: '2.0', id: request.id, result: {} }
  }

  /** Keeps what a request changed in the session's record, once the server has accepted it. */
  noteChange (session: LiveSession, call: Call): void {
    const { method, params = {} } = call.request
    const change: Change | undefined = method === 'logging/setLevel'
      ? { kind: 'logLevel', level: String(params.level) }
      : method === 'resources/subscribe'
        ? { kind: 'subscribe', uri: String(params.uri) }
        : method === 'resources/unsubscribe' ? { kind: 'unsubscribe', uri: String(params.uri) } : undefined
    if (change === undefined) return
    const { context } = this.#options
    call.onResult = () => this.change(session.sessionId, change, true).catch(error => {
      context.warn({ err: error, sid: session.sessionId, change }, 'a change of the session could not be kept')
    })
  }

  /** Changes the record, then every live instance. `here`: this replica's instance knows already. */
  async change (sid: string, change: Change, here = false): Promise<void> {
    const { context, replica, patienceMs } = this.#options
    if (!await patiently(patienceMs, () => context.log.change(sid, change))) throw new SessionGone(sid)
    if (!here) await this.#apply(sid, change)
    await replica.announce('changed', JSON.stringify({ sid, change, from: replica.id })).catch(() => {})
  }

  /** @returns whether the session was there. */
  async terminate (sid: string): Promise<boolean> {
    if (!SESSION_ID.test(sid)) return false
    const there = await patiently(this.#options.patienceMs, () => this.#options.context.log.terminate(sid))
    await this.#end(sid)
    return there
  }

  /** Waits until no call runs here, for `graceMs` at most. */
  async settle (graceMs: number): Promise<void> {
    const deadline = performance.now() + graceMs
    while (performance.now() < deadline && (await this.calls()).length > 0) await sleep(SETTLE_MS)
  }

  /** Lets every live instance go; their sessions live on in the log. */
  async close (): Promise<void> {
    clearInterval(this.#timer)
    for (const making of this.#live.values()) await making.then(session => session.close(), () => {})
    this.#live.clear()
  }

  /** Calls that run here. */
  async calls (): Promise<Call[]> {
    const sessions = await Promise.all([...this.#live.values()].map(making => making.catch(() => undefined)))
    return sessions.flatMap(session => [...session?.calls.values() ?? []])
  }

  async #end (sid: string): Promise<void> {
    this.#options.carriers.endSession(sid)
    const making = this.#live.get(sid)
    this.#live.delete(sid)
    await making?.then(session => session.close(), () => {})
  }

  async #apply (sid: string, change: Change): Promise<void> {
    const session = await this.#live.get(sid)?.catch(() => undefined)
    if (session === undefined) return
    if (change.kind === 'initialized') session.receive({ jsonrpc: '2.0', method: 'notifications/initialized' }, {})
    else if (change.kind === 'logLevel') await session.apply('logging/setLevel', { level: change.level }).catch(() => {})
    else await session.apply(`resources/${change.kind}`, { uri: change.uri }).catch(() => {})
  }

  /** Cancels wherever the call runs: written to the log first, so that it holds although a message may be lost. */
  async #cancel (sid: string, requestId: RpcId, params: Record<string, unknown>): Promise<void> {
    const { context, replica } = this.#options
    if (await this.#cancelHere(sid, requestId, params)) return
    for (const [stream, { request }] of await context.log.unfinished(sid)) {
      if (request?.id !== requestId) continue
      await context.log.append(sid, { stream, events: [], finish: true, token: { replica: replica.id, n: context.outbox.nextToken() } })
    }
    await replica.announce('cancel', JSON.stringify({ sid, requestId, params }))
  }

  async #cancelHere (sid: string, requestId: RpcId, params: Record<string, unknown>): Promise<boolean> {
    const session = await this.#live.get(sid)?.catch(() => undefined)
    const calls = [...session?.calls.values() ?? []].filter(call => call.clientId === requestId)
    for (const call of calls) await session!.cancel(call, params)
    return calls.length > 0
  }

  /** Brings the client's answer to the handler that waits for it, wherever it is. */
  async #answer (sid: string, wireId: RpcId, message: RpcResponse | RpcNotification): Promise<void> {
    const { context, replica } = this.#options
    const owner = replicaOf(wireId)
    if (owner === replica.id) this.#answerHere(sid, message)
    else if (owner === undefined || !await replica.send(owner, 'answer', JSON.stringify({ sid, message })).catch(() => false)) {
      context.counters.unclaimedAnswers++
      context.warn({ sid, id: wireId }, 'the client answered a request that nobody waits for')
    }
  }

  #answerHere (sid: string, message: RpcResponse | RpcNotification): void {
    const { context } = this.#options
    const wireId = 'method' in message ? message.params?.progressToken as string : message.id as string
    const waiting = 'method' in message ? context.requests.peek(wireId) : context.requests.take(wireId)
    if (waiting === undefined || waiting.owner.sessionId !== sid) {
      context.counters.unclaimedAnswers++
      context.warn({ sid, id: wireId }, 'the client answered a request that nobody waits for')
    } else if ('method' in message) {
      waiting.owner.receive({ ...message, params: { ...message.params, progressToken: waiting.id } }, {})
    } else {
      waiting.owner.receive({ ...message, id: waiting.id }, {})
    }
  }

  /** Keeps sessions alive whose calls run here, and lets idle instances go. */
  async #maintain (): Promise<void> {
    const { context, carriers, idleMs } = this.#options
    const busy = new Set([...carriers.all()].map(({ sid }) => sid))
    for (const [sid, making] of [...this.#live]) {
      const session = await making.catch(() => undefined)
      if (session === undefined) continue
      if (!session.idle) busy.add(sid)
      else if (performance.now() - session.lastUsed > idleMs && this.#live.get(sid) === making) {
        this.#live.delete(sid)
        await session.close()
      }
    }
    context.outbox.sweep()
    try {
      await context.log.touch([...busy])
    } catch (error) {
      if (!(error instanceof LogAway)) throw error
    }
  }
}

/** Whether a header's text can be one of our session IDs: nothing else becomes a key. */
export function isSessionId (text: string): boolean {
  return SESSION_ID.test(text)
}
