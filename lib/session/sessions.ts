import { randomBytes } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { LogAway, SessionGone, TooManySessions, VersionChanged } from '../errors.ts'
import type { Carriers } from '../carriers.ts'
import type { Change, SessionRecord } from '../log/log.ts'
import { patiently } from '../log/patience.ts'
import type { Replica } from '../replica.ts'
import type { Call } from './call.ts'
import type { Context, MessageExtra } from './context.ts'
import { isObject, type RpcRequest, type RpcResponse } from './jsonrpc.ts'
import { LiveSession } from './live-session.ts'

export interface SessionsOptions {
  readonly context: Context
  readonly replica: Replica
  readonly carriers: Carriers
  readonly sessionTtlMs: number
  /** How long a session has to send `notifications/initialized`, in ms. */
  readonly handshakeMs: number
  /** A live instance that serves nothing for this long, in ms, is let go. */
  readonly idleMs: number
  /** Time between the ticks of a stream, in ms. */
  readonly keepAliveMs: number
  readonly maxSessionsPerPrincipal: number
  /** What happens to one session too many. */
  readonly onSessionLimit: 'evict' | 'refuse'
  /** How long a request waits for a log that is away, in ms. */
  readonly patienceMs: number
}

/** An instance that is being made, then is there. */
interface Live {
  readonly making: Promise<LiveSession>
  session: LiveSession | undefined
}

const SESSION_ID = /^[A-Za-z0-9_-]{32}$/
const MAINTAIN_MS = 5000
const SETTLE_MS = 20
const LONGEST_URI = 4096
const LEVELS = ['debug', 'info', 'notice', 'warning', 'error', 'critical', 'alert', 'emergency']

/** The sessions that are live on this replica, and what crosses replicas about sessions. */
export class Sessions {
  readonly #options: SessionsOptions
  readonly #live = new Map<string, Live>()
  readonly #timer: NodeJS.Timeout

  constructor (options: SessionsOptions) {
    this.#options = options
    const { replica } = options
    replica.on('terminated', sid => { void this.#end(sid) })
    replica.on('changed', body => {
      const [sid, from] = body.split(' ')
      if (from !== replica.id) void this.#refresh(sid!)
    })
    // Often enough that no session expires between two looks.
    this.#timer = setInterval(() => { void this.#maintain() }, Math.min(MAINTAIN_MS, options.sessionTtlMs / 3, options.handshakeMs / 3)).unref()
  }

  get size (): number {
    return this.#live.size
  }

  /** Opens a session for an `initialize` request. Without a session ID the server refused it. */
  async initialize (request: RpcRequest, principal: string, extra: MessageExtra): Promise<{ sid: string | undefined, response: RpcResponse }> {
    const { context, handshakeMs, patienceMs } = this.#options
    await patiently(patienceMs, () => this.#limit(principal))
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
    this.#live.set(sid, { making: Promise.resolve(session), session })
    created()
    return { sid, response: { ...answer, result: { ...result, capabilities } } }
  }

  /**
   * The live instance of a session, which knows its record; makes one if there is none. Concurrent first requests share
   * it. What was changed elsewhere holds here from the next request on, whether or not its announcement arrives.
   */
  async get (sid: string, record: SessionRecord): Promise<LiveSession> {
    const known = this.#live.get(sid)
    if (known !== undefined && known.session?.closed !== true) {
      const session = await known.making
      await session.update(record)
      return session
    }
    const live: Live = { making: LiveSession.revive(this.#options.context, sid, record), session: undefined }
    this.#live.set(sid, live)
    try {
      live.session = await live.making
      return live.session
    } catch (error) {
      // Nothing is kept of a failed attempt: the next request tries again.
      if (this.#live.get(sid) === live) this.#live.delete(sid)
      if (error instanceof VersionChanged) await this.terminate(sid)
      throw error
    }
  }

  /** The live instance, if there is one here. */
  async find (sid: string): Promise<LiveSession | undefined> {
    return await this.#live.get(sid)?.making.catch(() => undefined)
  }

  /** Whether the request of this stream runs here. */
  runs (sid: string, stream: string): boolean {
    return this.#live.get(sid)?.session?.calls.has(stream) === true
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
    const uri = String(params.uri)
    if (uri.length > LONGEST_URI) return
    const change: Change | undefined = method === 'logging/setLevel'
      ? { kind: 'logLevel', level: String(params.level) }
      : method === 'resources/subscribe'
        ? { kind: 'subscribe', uri }
        : method === 'resources/unsubscribe' ? { kind: 'unsubscribe', uri } : undefined
    if (change === undefined) return
    const { context } = this.#options
    call.onResult = () => this.change(session.sessionId, change, session).catch(error => {
      context.warn({ err: error, sid: session.sessionId, change }, 'a change of the session could not be kept')
    })
  }

  /** Changes the record, then every live instance. `by`: the instance here that knows already. */
  async change (sid: string, change: Change, by?: LiveSession): Promise<void> {
    const { context, replica, patienceMs } = this.#options
    if (!await patiently(patienceMs, () => context.log.change(sid, change))) throw new SessionGone(sid)
    by?.known.note(change)
    if (by === undefined) await this.#refresh(sid)
    await replica.announce('changed', `${sid} ${replica.id}`).catch(() => {})
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
    while (performance.now() < deadline && this.#calls().length > 0) await sleep(SETTLE_MS)
  }

  /** Lets every live instance go; their sessions live on in the log. */
  async close (): Promise<void> {
    clearInterval(this.#timer)
    for (const { making } of this.#live.values()) await making.then(session => session.close(), () => {})
    this.#live.clear()
  }

  async #end (sid: string): Promise<void> {
    const { carriers, context } = this.#options
    context.log.forget(sid)
    carriers.endSession(sid)
    const live = this.#live.get(sid)
    this.#live.delete(sid)
    await live?.making.then(session => session.close(), () => {})
  }

  /** Calls that run here. */
  #calls (): Call[] {
    return [...this.#live.values()].flatMap(({ session }) => [...session?.calls.values() ?? []])
  }

  /** Tells the live instance, if there is one, how its record is now: records are read in order, announcements may overtake. */
  async #refresh (sid: string): Promise<void> {
    const session = await this.find(sid)
    if (session === undefined) return
    try {
      const record = await this.#options.context.log.record(sid)
      if (record !== undefined) await session.update(record)
    } catch { /* the next request tells it */ }
  }

  /** Keeps sessions alive that are in use here, ends what ended elsewhere unheard, and lets idle instances go. */
  async #maintain (): Promise<void> {
    const { context, carriers, idleMs, sessionTtlMs, handshakeMs, keepAliveMs } = this.#options
    // Streams keep their sessions alive themselves, once a tick, unless a session's life is shorter than that.
    const busy = new Set(Math.min(sessionTtlMs, handshakeMs) > keepAliveMs ? [] : [...carriers.all()].map(({ sid }) => sid))
    for (const [sid, live] of [...this.#live]) {
      const { session } = live
      if (session === undefined) continue
      if (!session.idle) busy.add(sid)
      else if (!session.asking && performance.now() - session.lastUsed > idleMs) {
        this.#live.delete(sid)
        await session.close()
      }
    }
    context.outbox.sweep()
    try {
      await context.log.touch([...busy])
      await Promise.all([...this.#live.values()].flatMap(({ session }) =>
        session === undefined ? [] : [...session.calls.values()].map(call => this.#check(session, call))))
    } catch (error) {
      if (!(error instanceof LogAway)) throw error
    }
  }

  /** A cancellation or a DELETE on another replica may not have been heard here; the log knows. */
  async #check (session: LiveSession, call: Call): Promise<void> {
    const { opening } = call
    if (opening === undefined) return
    const { context } = this.#options
    const state = await context.log.tick(session.sessionId, call.id, { replica: context.replica, connection: '-' }, opening)
    if (state?.finished === true && !call.over) await session.cancel(call, { reason: 'The request was cancelled' })
    if (state === undefined && await context.log.record(session.sessionId) === undefined) await this.terminate(session.sessionId)
  }

  /** Makes room for one more session of a principal, or refuses it. */
  async #limit (principal: string): Promise<void> {
    const { context, maxSessionsPerPrincipal, onSessionLimit } = this.#options
    if (principal === '' || maxSessionsPerPrincipal === Infinity) return
    const idleFirst = await context.log.sessionsOf(principal)
    const over = idleFirst.length - maxSessionsPerPrincipal + 1
    if (over <= 0) return
    if (onSessionLimit === 'refuse') throw new TooManySessions(idleFirst.length)
    for (const sid of idleFirst.slice(0, over)) await this.terminate(sid)
  }
}

/** Whether a header's text can be one of our session IDs: nothing else becomes a key. */
export function isSessionId (text: string): boolean {
  return SESSION_ID.test(text)
}
