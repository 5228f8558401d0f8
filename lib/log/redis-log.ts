import { readFileSync } from 'node:fs'
import type { Cluster, Redis } from 'ioredis'
import { LogAway } from '../errors.ts'
import { STANDALONE, type EventId } from '../event-id.ts'
import type { Keys } from './keys.ts'
import type {
  Append, AppendReply, Attached, Carrier, Change, Log, LogEvent, Page, Refusal, Retention, SessionRecord, Snapshot, StreamState
} from './log.ts'
import { formatRequest, markOf, parseCarrier, parseEntry, parseRecord, parseStream } from './redis-format.ts'
import { SessionIndex } from './session-index.ts'
import { newTag } from './tags.ts'

export type RedisClient = Redis | Cluster

export interface RedisLogOptions {
  readonly redis: RedisClient
  readonly keys: Keys
  readonly replica: string
  readonly retention: Retention
  readonly sessionTtlMs: number
  /** How long a command may take, in ms, before the log counts as away. */
  readonly commandTimeoutMs: number
}

/** What an operator may want to know of a session's log. */
export interface Inspection {
  readonly record: SessionRecord
  readonly head: number
  readonly floor: number
  /** When the oldest retained event was logged, by Redis's clock, in ms since 1970. */
  readonly floorTime: number
  readonly bytes: number
  /** Events that should be there, and those that are: they differ when Redis has evicted the log. */
  readonly events: number
  readonly eventsFound: number
  /** Events evicted inside the retention window for want of room. */
  readonly evictedEarly: number
  /** What is left of the session's life without activity. */
  readonly ttlMs: number
  readonly streams: readonly StreamState[]
}

type Arg = string | number
type Script = (...args: Arg[]) => Promise<unknown>

const SCRIPTS = ['create', 'snapshot', 'append', 'read', 'attach', 'detach', 'tick', 'touch', 'change', 'terminate', 'index'] as const
type ScriptName = typeof SCRIPTS[number]

const REMEMBERED_SESSIONS = 10_000

/** The log in Redis: two keys a session, one script a step. Speaks ioredis, returns plain values. */
export class RedisLog implements Log {
  readonly #options: RedisLogOptions
  readonly #scripts: Record<ScriptName, Script>
  /** Highest number this replica has seen in a session, so that a failover which lost the newest cannot issue it again. */
  readonly #seen = new Map<string, number>()
  readonly #index: SessionIndex

  constructor (options: RedisLogOptions) {
    this.#options = options
    this.#scripts = defineScripts(options.redis)
    this.#index = new SessionIndex({ ...options, answer: async command => await this.#answer(command), note: this.#scripts.index })
  }

  async create (sid: string, record: SessionRecord, ttlMs: number): Promise<void> {
    const { version, initialize, capabilities, principal } = record
    await this.#call('create', sid, JSON.stringify({ version, initialize, capabilities }), principal, ttlMs, newTag())
    await this.#index.add(sid, principal, ttlMs)
  }

  async snapshot (sid: string, principal: string, cursor: EventId | 'watermark' | undefined): Promise<Snapshot | undefined> {
    return await this.#snapshot(sid, principal, cursor, '')
  }

  /** A snapshot for an operator: of anybody's session, without any effect. */
  async peek (sid: string, cursor: EventId | 'watermark'): Promise<Snapshot | undefined> {
    return await this.#snapshot(sid, '', cursor, '1')
  }

  async #snapshot (sid: string, principal: string, cursor: EventId | 'watermark' | undefined, look: '' | '1'): Promise<Snapshot | undefined> {
    const at = cursor === undefined
      ? ['', '', '', '']
      : cursor === 'watermark' ? [STANDALONE, '', '', ''] : [cursor.stream, cursor.seq, cursor.offset, cursor.tag]
    const reply = await this.#call('snapshot', sid, principal, ...at, look) as SnapshotReply | null
    if (reply === null) return undefined
    const [fixed, initialized, level, subscriptions, head, floor, raw, retained, emptied] = reply
    const state = raw === '' ? undefined : parseStream(cursor === undefined || cursor === 'watermark' ? STANDALONE : cursor.stream, raw)
    this.#remember(sid, Number(head))
    if (look === '') this.#index.used(sid, principal)
    return {
      session: parseRecord(fixed, principal, initialized, level, subscriptions),
      head: Number(head),
      floor: Number(floor),
      stream: state !== undefined && Number(emptied) === 1 ? { ...state, evicted: state.newest } : state,
      retained: Number(retained) === 1,
      cursor: cursor === 'watermark' ? state?.watermark : cursor
    }
  }

  async record (sid: string): Promise<SessionRecord | undefined> {
    const { redis, keys } = this.#options
    const fields = await this.#answer(() => redis.hmget(keys.session(sid)[0], 'i', 'p', 'n', 'l', 'u')) as string[]
    return fields[0] === null ? undefined : parseRecord(...fields as [string, string, string, string, string])
  }

  async stream (sid: string, stream: string): Promise<StreamState | undefined> {
    const { redis, keys } = this.#options
    const raw = await this.#answer(() => redis.hget(keys.session(sid)[0], `s:${stream}`)) as string | null
    return raw === null ? undefined : parseStream(stream, raw)
  }

  async append (sid: string, append: Append): Promise<AppendReply> {
    const { stream, events, token, open, finish, expect } = append
    const { retention, keys } = this.#options
    const reply = await this.#call('append', sid,
      stream, token.replica, token.n, this.#seen.get(sid) ?? 0,
      retention.windowMs, retention.maxEvents, retention.maxBytes,
      open === undefined ? '' : formatRequest(open.request), open?.carrier?.connection ?? '-',
      expect === undefined ? '' : `${expect.seq}-${expect.tag}`, finish === true ? '1' : '', keys.replicas, sid,
      ...events.flatMap(event => [event.tag, markOf(event), event.payload])
    ) as [status: 'appended' | 'duplicate' | Refusal, ...rest: string[]]
    if (reply[0] === 'duplicate') return { status: 'duplicate', stream: reply[1]! }
    if (reply[0] !== 'appended') return { status: reply[0] }
    const [, seq, offset, pseq, ptag, flag, carrier, connection, fence, early] = reply
    let predecessor = Number(pseq) === 0 ? undefined : { seq: Number(pseq), tag: ptag! }
    const logged = events.map((event, i): LogEvent => {
      const id = { seq: Number(seq) + i, offset: Number(offset) + i, stream, tag: event.tag }
      const one = { id, predecessor, payload: event.payload, final: event.final }
      predecessor = id
      return one
    })
    if (logged.length > 0) this.#remember(sid, logged.at(-1)!.id.seq)
    return {
      status: 'appended',
      events: logged,
      finished: flag === 'f',
      carrier: parseCarrier(carrier!, connection!),
      fence: Number(fence),
      evictedEarly: Number(early)
    }
  }

  async read (sid: string, stream: string, position: { seq: number, offset: number }, scanned: number, maxBytes: number): Promise<Page | undefined> {
    const reply = await this.#call('read', sid, stream, position.seq, position.offset, scanned, maxBytes) as PageReply | null
    if (reply === null) return undefined
    const [raw, upTo, more, ...entries] = reply
    const events: LogEvent[] = []
    for (let i = 0; i < entries.length; i += 2) events.push(parseEntry(entries[i]!, entries[i + 1]!))
    const state = parseStream(stream, raw)
    this.#remember(sid, state.newest.seq)
    return { events, scanned: Number(upTo), more: Number(more) === 1, stream: state }
  }

  async attach (sid: string, stream: string, carrier: Carrier): Promise<Attached | undefined> {
    const reply = await this.#call('attach', sid, stream, carrier.replica, carrier.connection, this.#options.keys.replicas, sid) as
      [fence: string, replica: string, connection: string, takeovers: number, runner: string] | null
    if (reply === null) return undefined
    return { fence: Number(reply[0]), runner: reply[4], previous: parseCarrier(reply[1], reply[2]), takeovers: Number(reply[3]) }
  }

  async detach (sid: string, stream: string, carrier: Carrier, position: EventId): Promise<void> {
    await this.#call('detach', sid, stream, carrier.replica, carrier.connection, position.seq, position.offset, position.tag)
  }

  async tick (sid: string, stream: string, carrier: Carrier, position: EventId): Promise<StreamState | undefined> {
    const raw = await this.#call('tick', sid, stream, carrier.replica, carrier.connection, position.seq, position.offset, position.tag)
    return raw === null ? undefined : parseStream(stream, raw as string)
  }

  async touch (sids: readonly string[]): Promise<void> {
    await Promise.all(sids.map(sid => this.#call('touch', sid)))
    await this.#index.flush()
  }

  async change (sid: string, change: Change): Promise<boolean> {
    const value = change.kind === 'initialized' ? change.ttlMs : change.kind === 'logLevel' ? change.level : change.uri
    const there = Number(await this.#call('change', sid, change.kind, value)) === 1
    if (there && change.kind === 'initialized') await this.#index.add(sid, undefined, change.ttlMs)
    return there
  }

  async terminate (sid: string): Promise<boolean> {
    const { keys } = this.#options
    const [hash, log] = keys.session(sid)
    const [there, principal] = await this.#answer(() => this.#scripts.terminate(2, hash, log, keys.everyone, sid)) as [there: number, principal: string]
    this.#seen.delete(sid)
    await this.#index.remove(sid, principal)
    return Number(there) === 1
  }

  forget (sid: string): void {
    this.#index.forget(sid)
  }

  async unfinished (sid: string): Promise<ReadonlyMap<string, StreamState>> {
    const fields = await this.#answer(() => this.#options.redis.hgetall(this.#options.keys.session(sid)[0])) as Record<string, string>
    const streams = new Map<string, StreamState>()
    for (const [field, raw] of Object.entries(fields)) {
      if (!field.startsWith('s:')) continue
      const state = parseStream(field.slice(2), raw)
      if (!state.finished && state.request !== undefined) streams.set(state.newest.stream, state)
    }
    return streams
  }

  async sessions (): Promise<string[]> {
    return await this.#index.sessions()
  }

  /** What the log holds of a session, for an operator: without any effect. */
  async inspect (sid: string): Promise<Inspection | undefined> {
    const { redis, keys } = this.#options
    const [hash, log] = keys.session(sid)
    const fields = await this.#answer(() => redis.hgetall(hash)) as Record<string, string>
    if (fields.c === undefined) return undefined
    const [head, floor, floorTime, , bytes, count, , , evictedEarly] = fields.c.split(' ').map(Number) as [number, number, number, ...number[]]
    const [ttlMs, length] = (await Promise.all([this.#answer(() => redis.pttl(hash)), this.#answer(() => redis.xlen(log))])).map(Number) as [number, number]
    const streams = Object.entries(fields).filter(([field]) => field.startsWith('s:')).map(([field, raw]) => parseStream(field.slice(2), raw))
    return {
      record: parseRecord(fields.i!, fields.p!, fields.n!, fields.l!, fields.u!),
      head,
      floor,
      floorTime,
      bytes: bytes!,
      events: count!,
      eventsFound: length,
      evictedEarly: evictedEarly!,
      ttlMs,
      streams: streams.sort((a, b) => a.newest.seq - b.newest.seq)
    }
  }

  async sessionsOf (principal: string): Promise<string[]> {
    return await this.#index.sessionsOf(principal)
  }

  async close (): Promise<void> {}

  async #call (name: Exclude<ScriptName, 'index' | 'terminate'>, sid: string, ...args: Arg[]): Promise<unknown> {
    const reply = await this.#answer(() => this.#scripts[name](2, ...this.#options.keys.session(sid), ...args))
    // What names no session leaves no trace: the index would keep it for as long as a session lives. Some answer so
    // for other reasons, too: the session is noted again with its next use.
    const gone = reply === null || reply === 0 || reply === '0' || (Array.isArray(reply) && reply[0] === 'gone')
    if (!gone) this.#index.used(sid)
    return reply
  }

  /**
   * The answer, or `LogAway`: at once while there is no connection (nothing is added to an offline queue), on any Redis
   * error, and when the answer takes too long, since a promise of ioredis may never settle.
   */
  async #answer (command: () => Promise<unknown>): Promise<unknown> {
    const { redis, commandTimeoutMs } = this.#options
    // A client that connects lazily has not been asked to yet.
    if (redis.status === 'wait') redis.connect().catch(() => { /* it tries again by itself, or says so */ })
    if (redis.status !== 'ready') throw new LogAway(`Redis is not connected (${redis.status})`)
    let timer: NodeJS.Timeout | undefined
    try {
      return await Promise.race([
        command(),
        new Promise((_resolve, reject) => {
          timer = setTimeout(() => reject(new LogAway(`no answer within ${commandTimeoutMs} ms`)), commandTimeoutMs)
        })
      ])
    } catch (error) {
      if (error instanceof LogAway) throw error
      throw new LogAway(error instanceof Error ? error.message : String(error))
    } finally {
      clearTimeout(timer)
    }
  }

  #remember (sid: string, seq: number): void {
    const known = this.#seen.get(sid) ?? 0
    this.#seen.delete(sid)
    this.#seen.set(sid, Math.max(known, seq))
    if (this.#seen.size > REMEMBERED_SESSIONS) this.#seen.delete(this.#seen.keys().next().value!)
  }
}

// Numbers are read with Number(): a client may be set to answer them as text.
type SnapshotReply = [
  fixed: string, initialized: string, level: string, subscriptions: string,
  head: string, floor: string, stream: string, retained: number, emptied: number
]
type PageReply = [stream: string, scanned: string, more: number, ...entries: string[]]

/** Defines the commands once on a client that may be shared; EVALSHA and NOSCRIPT are ioredis's business. */
function defineScripts (redis: RedisClient): Record<ScriptName, Script> {
  const lua = (name: string): string => readFileSync(new URL(`./lua/${name}.lua`, import.meta.url), 'utf8')
  const common = lua('common')
  const client = redis as unknown as Record<string, Script>
  return Object.fromEntries(SCRIPTS.map(name => {
    const command = `mcp${name[0]!.toUpperCase()}${name.slice(1)}`
    if (client[command] === undefined) redis.defineCommand(command, { lua: name === 'index' ? lua(name) : common + lua(name) })
    return [name, (...args: Arg[]) => client[command]!(...args)]
  })) as Record<ScriptName, Script>
}
