import { randomBytes } from 'node:crypto'
import type { Redis } from 'ioredis'
import type { EventId } from '../../lib/event-id.ts'
import { Keys } from '../../lib/log/keys.ts'
import type { Append, Appended, AppendReply, Log, LogEvent, Retention, SessionRecord } from '../../lib/log/log.ts'
import { MemoryLog } from '../../lib/log/memory-log.ts'
import { RedisLog } from '../../lib/log/redis-log.ts'
import { connectRedis, keyPrefix } from './redis.ts'
import type { Owner } from './teardown.ts'

/** A log, and time that passes when the test says so. */
export interface TestLog {
  readonly log: Log
  /** Lets `ms` pass for a session: its life, the age of its events, its takeovers. */
  elapse (sid: string, ms: number): Promise<void>
}

/** One of the two implementations; several logs of one backend share nothing but, in Redis, the server. */
export interface Backend {
  readonly name: 'memory' | 'redis'
  open (t: Owner, retention?: Partial<Retention>): Promise<TestLog>
}

export const RETENTION: Retention = { windowMs: 300_000, maxEvents: 10_000, maxBytes: 8 * 1024 * 1024 }
export const TTL_MS = 60_000

export const BACKENDS: readonly Backend[] = [{ name: 'memory', open: openMemory }, { name: 'redis', open: openRedis }]

export const RECORD: SessionRecord = {
  version: '2025-11-25',
  initialize: { protocolVersion: '2025-11-25', clientInfo: { name: 'tëst', version: '1' } },
  capabilities: { logging: {}, tools: { listChanged: true } },
  principal: '',
  initialized: false,
  logLevel: undefined,
  subscriptions: []
}

export function newSid (): string {
  return randomBytes(24).toString('base64url')
}

/** A session that is there, on this log. */
export async function newSession (log: Log, record: Partial<SessionRecord> = {}, ttlMs = TTL_MS): Promise<string> {
  const sid = newSid()
  await log.create(sid, { ...RECORD, ...record }, ttlMs)
  return sid
}

let numbers = 0

/** Never the same twice in this process. */
export function nextNumber (): number {
  return ++numbers
}

export function uniqueTag (): string {
  return nextNumber().toString(36).padStart(4, '0').slice(-4)
}

export interface AppendOptions extends Partial<Omit<Append, 'stream' | 'events' | 'open'>> {
  readonly replica?: string
  readonly final?: boolean
  /** Opens the stream for a request with this id; a digest of its own makes it a request of its own. */
  readonly open?: { readonly id?: string | number, readonly method?: string, readonly digest?: string, readonly connection?: string }
}

export function newEvents (payloads: readonly string[], final = false): Append['events'] {
  return payloads.map((payload, i) => ({ tag: uniqueTag(), payload, final: final && i === payloads.length - 1 }))
}

/** An append under a token of its own. */
export function newAppend (stream: string, payloads: readonly string[], { replica = 'a', final = false, open, ...rest }: AppendOptions = {}): Append {
  const { id = 1, method = 'tools/call', digest = `d${nextNumber()}`, connection } = open ?? {}
  return {
    stream,
    events: newEvents(payloads, final),
    token: { replica, n: nextNumber() },
    open: open && { request: { id, method, digest }, carrier: connection === undefined ? undefined : { replica, connection } },
    ...rest
  }
}

export async function append (log: Log, sid: string, stream: string, payloads: readonly string[], options?: AppendOptions): Promise<Appended> {
  const reply = await log.append(sid, newAppend(stream, payloads, options))
  return appended(reply)
}

export function appended (reply: AppendReply): Appended {
  if (reply.status !== 'appended') throw new Error(`not appended: ${JSON.stringify(reply)}`)
  return reply
}

/** All events of a stream after a position, page by page, as a delivery reads them. */
export async function readAll (log: Log, sid: string, stream: string, position: { seq: number, offset: number }, maxBytes = 256 * 1024): Promise<LogEvent[]> {
  const events: LogEvent[] = []
  let at = position
  let scanned = position.seq
  for (;;) {
    const page = await log.read(sid, stream, at, scanned, maxBytes)
    if (page === undefined) return events
    events.push(...page.events)
    if (!page.more) return events
    if (page.events.length === 0 && page.scanned <= scanned) throw new Error('a page that leads nowhere')
    // A position that is only a number has no offset until an event was read.
    at = page.events.at(-1)?.id ?? at
    scanned = Math.max(page.scanned, at.seq)
  }
}

export async function newestOf (log: Log, sid: string, stream: string): Promise<EventId> {
  const state = await log.stream(sid, stream)
  if (state === undefined) throw new Error(`no stream ${stream}`)
  return state.newest
}

async function openMemory (t: Owner, retention: Partial<Retention> = {}): Promise<TestLog> {
  const log = new MemoryLog({ ...RETENTION, ...retention })
  const now = Date.now
  let ahead = 0
  Date.now = () => now() + ahead
  t.teardown(async () => {
    Date.now = now
    await log.close()
  })
  return { log, elapse: async (_sid, ms) => { ahead += ms } }
}

async function openRedis (t: Owner, retention: Partial<Retention> = {}): Promise<TestLog> {
  const keys = new Keys(keyPrefix(t))
  const redis = await connectRedis(t)
  const log = redisLog(redis, keys, { retention })
  return { log, elapse: (sid, ms) => elapse(redis, keys, sid, ms) }
}

export function redisLog (redis: Redis, keys: Keys, { retention = {}, replica = 'a', commandTimeoutMs = 5000 }: { retention?: Partial<Retention>, replica?: string, commandTimeoutMs?: number } = {}): RedisLog {
  return new RedisLog({ redis, keys, replica, retention: { ...RETENTION, ...retention }, sessionTtlMs: 3_600_000, commandTimeoutMs })
}

/** Redis's clock cannot be moved, so what was written is made older. */
async function elapse (redis: Redis, keys: Keys, sid: string, ms: number): Promise<void> {
  const [hash, log] = keys.session(sid)
  const fields = await redis.hgetall(hash)
  const entries = await redis.xrange(log, '-', '+')
  const older = (text: string, at: number): string => text.split(' ').map((part, i) => i === at ? String(Math.max(0, Number(part) - ms)) : part).join(' ')
  const write = redis.multi()
  for (const [field, value] of Object.entries(fields)) {
    if (field === 'c') write.hset(hash, field, older(value, 2))
    if (field.startsWith('s:')) write.hset(hash, field, older(value, 14))
  }
  for (const [key, left] of [[hash, await redis.pttl(hash)], [log, await redis.pttl(log)]] as const) {
    if (key === log && entries.length > 0) {
      write.del(log)
      for (const [id, [, value]] of entries) write.xadd(log, id, 'e', older(value!, 4))
    }
    if (left <= ms) write.del(key)
    else write.pexpire(key, left - ms)
  }
  if (await redis.zscore(keys.sessions, sid) !== null) write.zincrby(keys.sessions, -ms, sid)
  await write.exec()
}
