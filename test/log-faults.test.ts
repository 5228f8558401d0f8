// A Redis that refuses, stops, freezes, or comes back as an older copy of itself.
import { once } from 'node:events'
import { Redis, type RedisOptions } from 'ioredis'
import t, { type Test } from 'tap'
import { LogAway } from '../lib/errors.ts'
import type { EventId } from '../lib/event-id.ts'
import { Appender } from '../lib/log/appender.ts'
import { Keys } from '../lib/log/keys.ts'
import type { Log, LogEvent } from '../lib/log/log.ts'
import type { RedisLog } from '../lib/log/redis-log.ts'
import { decideResume } from '../lib/resume.ts'
import { RECORD, TTL_MS, append, appended, newAppend, newSession, newSid, newestOf, nextNumber, readAll, redisLog } from './helpers/logs.ts'
import { freePort } from './helpers/port.ts'
import { connectRedis, keyPrefix, startRedis } from './helpers/redis.ts'
import type { RedisServer } from './helpers/redis-server.ts'
import type { Owner } from './helpers/teardown.ts'
import { until, within } from './helpers/wait.ts'

const A = 'aaaaaaaa'
const keys = new Keys('x:')
const payloadsOf = (events: readonly LogEvent[]): string[] => events.map(({ payload }) => payload)

interface Own {
  server: RedisServer
  redis: Redis
  /** With the command time-out that the test asks for. */
  log: RedisLog
  /** With one that a busy machine does not reach. */
  patient: RedisLog
  sid: string
  newest: EventId
}

/** A Redis of the test's own, with a session that has a running call. */
async function own (t: Owner, options: RedisOptions = {}, commandTimeoutMs = 30_000): Promise<Own> {
  const server = await startRedis(t)
  const redis = new Redis(server.url, { retryStrategy: () => 20, ...options } as object)
  t.teardown(() => redis.disconnect())
  redis.on('error', () => {})
  await once(redis, 'ready')
  const [log, patient] = [redisLog(redis, keys, { commandTimeoutMs }), redisLog(redis, keys, { commandTimeoutMs: 30_000 })]
  const sid = await newSession(patient)
  await append(patient, sid, A, ['', '{"n":1}'], { open: { connection: 'c1' } })
  return { server, redis, log, patient, sid, newest: await newestOf(patient, sid, A) }
}

const writes: Record<string, (log: Log, sid: string, newest: EventId) => Promise<unknown>> = {
  create: log => log.create(newSid(), RECORD, TTL_MS),
  append: (log, sid) => log.append(sid, newAppend(A, ['{"n":2}', '{"n":3}'])),
  finish: (log, sid) => log.append(sid, newAppend(A, [], { finish: true })),
  attach: (log, sid) => log.attach(sid, A, { replica: 'a', connection: `c${nextNumber()}` }),
  initialized: (log, sid) => log.change(sid, { kind: 'initialized', ttlMs: 3_600_000 }),
  'log level': (log, sid) => log.change(sid, { kind: 'logLevel', level: 'debug' }),
  subscribe: (log, sid) => log.change(sid, { kind: 'subscribe', uri: 'file:///b' })
}

const reads: Record<string, (log: Log, sid: string, newest: EventId) => Promise<unknown>> = {
  snapshot: (log, sid, newest) => log.snapshot(sid, '', newest),
  read: (log, sid, newest) => log.read(sid, A, newest, newest.seq, 1000),
  record: (log, sid) => log.record(sid),
  stream: (log, sid) => log.stream(sid, A),
  unfinished: (log, sid) => log.unfinished(sid),
  sessions: log => log.sessions()
}

async function isAway (t: Test, log: Log, sid: string, newest: EventId, message: RegExp, steps = { ...writes, ...reads }): Promise<void> {
  for (const [what, step] of Object.entries(steps)) {
    const error = await step(log, sid, newest).then(() => undefined, (error: unknown) => error)
    t.ok(error instanceof LogAway && message.test(error.message), `${what}: ${String(error)}`)
  }
}

t.test('out of memory: writes are away, nothing is half done, no life is prolonged, and reads go on', async t => {
  const { redis, log, sid, newest } = await own(t)
  await redis.config('SET', 'maxmemory-policy', 'noeviction')
  for (const key of keys.session(sid)) await redis.pexpire(key, TTL_MS / 2)
  const state = async () => ({ keys: (await redis.keys('*')).sort(), hash: await redis.hgetall(keys.session(sid)[0]), log: await redis.xrange(keys.session(sid)[1], '-', '+') })
  const before = await state()
  await redis.config('SET', 'maxmemory', '1')
  await isAway(t, log, sid, newest, /OOM/, writes)
  t.strictSame(await state(), before)
  for (const key of keys.session(sid)) t.ok(await redis.pttl(key) <= TTL_MS / 2)
  t.match(await log.snapshot(sid, '', newest), { retained: true })
  t.strictSame(payloadsOf(await readAll(log, sid, A, { seq: 0, offset: -1 })), ['', '{"n":1}'])

  await redis.config('SET', 'maxmemory', '0')
  for (const [what, step] of Object.entries(writes)) await t.resolves(step(log, sid, newest), what)
  t.equal(await log.terminate(sid), true)
})

t.test('a session can be ended although there is no memory', async t => {
  const { redis, log, sid } = await own(t)
  await redis.config('SET', 'maxmemory', '1')
  t.equal(await log.terminate(sid), true)
  t.equal(await redis.exists(...keys.session(sid)), 0)
})

t.test('demoted to a read-only replica: writes are away, and work again after', async t => {
  const { redis, log, sid, newest } = await own(t)
  await redis.replicaof('127.0.0.1', await freePort())
  await isAway(t, log, sid, newest, /READONLY/, writes)
  await redis.replicaof('NO', 'ONE')
  await until(() => log.append(sid, newAppend(A, ['{"n":2}'])).then(() => true, () => false), 'writes work again')
})

t.test('busy with somebody\'s script: away at once, back after', async t => {
  const { server, redis, log, sid, newest } = await own(t)
  await redis.config('SET', 'busy-reply-threshold', '1')
  const other = await connectRedis(t, server.url)
  other.eval('while true do end', 0).catch(() => {})
  await until(() => redis.ping().then(() => false, (error: Error) => error.message.startsWith('BUSY')), 'Redis says that it is busy')
  await isAway(t, log, sid, newest, /BUSY/)
  await redis.script('KILL')
  await until(() => log.append(sid, newAppend(A, ['{"n":2}'])).then(() => true, () => false), 'it works again')
  t.strictSame(payloadsOf(await readAll(log, sid, A, { seq: 0, offset: -1 })), ['', '{"n":1}', '{"n":2}'])
})

t.test('B53: stopped: away at once, nothing queues, recovered without anybody\'s help', async t => {
  for (const options of [{}, { maxRetriesPerRequest: null }, { enableOfflineQueue: false }] satisfies RedisOptions[]) {
    const { server, redis, log, sid, newest } = await own(t, options, 60_000)
    await server.kill9()
    await until(() => redis.status !== 'ready', 'the loss is noticed')
    const queued = (redis as unknown as { offlineQueue: { length: number } }).offlineQueue
    // The command's own time-out is a minute: what answers here answers at once.
    for (let i = 0; i < 5; i++) await within(isAway(t, log, sid, newest, /not connected|onnection is closed|offline queue/), 'everything is refused')
    t.equal(queued.length, 0)
    await server.restart()
    await until(() => log.sessions().then(() => true, () => false), 'the log is back')
    t.strictSame(await log.sessions(), [], 'nothing stale was carried out')
    t.equal(await redis.dbsize(), 0)
    t.equal((await log.append(sid, newAppend(A, ['{}']))).status, 'gone', 'what was not persisted is gone, and says so')
    await newSession(log)
  }
})

t.test('B53: frozen: away after the command\'s time, and an append that came through after all is done once', async t => {
  const { server, log, patient, sid, newest } = await own(t, {}, 100)
  server.freeze()
  await isAway(t, log, sid, newest, /no answer within 100 ms/, reads)
  const one = newAppend(A, ['{"n":2}'])
  for (let i = 0; i < 3; i++) await t.rejects(log.append(sid, one), LogAway)
  server.thaw()
  const { events } = await until(() => log.append(sid, one).then(appended, () => undefined), 'the log is back')
  t.strictSame([events[0]!.id.seq, events[0]!.id.offset], [4, 2])
  t.strictSame(payloadsOf(await readAll(patient, sid, A, { seq: 0, offset: -1 })), ['', '{"n":1}', '{"n":2}'])
})

t.test('B25: an appender waits while Redis is away and goes on where it stopped', async t => {
  const { server, log, patient, sid } = await own(t, {}, 200)
  const appender = new Appender({
    log, sid, stream: A, replica: 'a', nextToken: nextNumber, maxQueuedBytes: 1024 * 1024, onAppended: () => {}, onOverflow: () => {}, holeNotice: String
  })
  const sent = Array.from({ length: 50 }, (_, n) => `{"sent":${n}}`)
  const hold = setInterval(() => {}, 1000)
  t.teardown(() => clearInterval(hold))
  await appender.append(sent[0]!)
  server.freeze()
  const rest = Promise.all(sent.slice(1).map(payload => appender.append(payload)))
  await t.rejects(log.record(sid), LogAway)
  server.thaw()
  await within(rest, 'everything is appended')
  t.strictSame(payloadsOf(await readAll(patient, sid, A, { seq: 3, offset: 1 })), sent)
})

t.test('a client that was not connected yet is', async t => {
  const { server } = await own(t)
  const lazy = new Redis(server.url, { lazyConnect: true })
  t.teardown(() => lazy.disconnect())
  const log = redisLog(lazy, keys)
  const sid = newSid()
  await until(() => log.create(sid, RECORD, TTL_MS).then(() => true, () => false), 'the log is there')
})

t.test('B20: an older copy of the hash comes back alone: the log knows more, and is right', async t => {
  const redis = await connectRedis(t)
  const keys = new Keys(keyPrefix(t))
  for (const maxEvents of [1000, 8]) {
    // The replica that goes on has seen all, nothing, or what the copy says; it looks first, or appends at once.
    for (const [seen, looks] of [['all', true], ['all', false], ['nothing', true], ['nothing', false], ['copy', false]] as const) {
      const log = redisLog(redis, keys, { retention: { maxEvents } })
      const sid = await newSession(log)
      const [hash] = keys.session(sid)
      await append(log, sid, A, ['', '{"n":1}'], { open: {} })
      await append(log, sid, '1', Array(9).fill('{}'))
      const copy = (await redis.dumpBuffer(hash))!
      const other = seen === 'all' ? log : redisLog(redis, keys, { retention: { maxEvents }, replica: 'b' })
      if (seen === 'copy') await other.snapshot(sid, '', undefined)
      const before: LogEvent[] = await readAll(log, sid, '1', { seq: 0, offset: -1 })
      const { events } = await append(log, sid, '1', ['{"lost":1}', '{"lost":2}', '{"lost":3}'])
      await append(log, sid, A, ['{"r":1}'], { final: true })
      await append(log, sid, '1', ['{"lost":4}'])
      const { events: unknown } = await append(log, sid, 'bbbbbbbb', ['', '{"n":1}'], { open: {} })
      await redis.restore(hash, TTL_MS, copy, 'REPLACE')

      const cursors = [...before, ...events].map(({ id }) => id)
      const check = async (): Promise<void> => {
        for (const cursor of cursors) {
          const snapshot = (await other.snapshot(sid, '', cursor))!
          const decision = decideResume(cursor, snapshot)
          if (decision.start === undefined || decision.outcome === 'future') continue
          const got = await readAll(other, sid, '1', { offset: -1, ...decision.start })
          const isWhole = got.every(({ id, predecessor }, i) => i === 0
            ? decision.outcome !== 'resumed' || predecessor!.seq === cursor.seq
            : predecessor!.seq === got[i - 1]!.id.seq && id.offset === got[i - 1]!.id.offset + 1)
          const last = got.at(-1)?.id ?? decision.start
          t.ok(isWhole && last.seq === snapshot.stream!.newest.seq, `${JSON.stringify(cursor)}: ${decision.outcome} ${decision.cause}, then ${got.map(({ id }) => `${id.seq}-${id.offset}`).join()}`)
        }
      }
      if (looks) await check()
      const one = newAppend('1', ['{"next":1}'], { replica: 'b' })
      // The first try may be needed to find out.
      const [next] = (await until(() => other.append(sid, one).then(appended, () => undefined), 'the append is known')).events
      t.match(next!.id, { seq: 20, offset: 14 }, 'above all that the log has')
      await check()
      const { events: kept, eventsFound } = (await other.inspect(sid))!
      t.equal(kept, eventsFound, 'the totals are right again')
      const told = async (): Promise<string[]> => await Promise.all(unknown.map(async ({ id }) => decideResume(id, (await other.snapshot(sid, '', id))!).cause))
      t.strictSame(await told(), ['expired', 'expired'], 'a stream that was opened since is not known')
      await append(other, sid, 'bbbbbbbb', ['{"n":2}'], { open: {} })
      t.strictSame(await told(), ['diverged', 'diverged'], 'opened again it is another one')
      t.equal((await other.append(sid, newAppend(A, ['{}']))).status, 'finished', 'a response that the log has is not sent twice')
    }
  }
})
