// What only the log in Redis has: other processes, keys that vanish, errors, lost replies, other clients.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { Redis, type RedisOptions } from 'ioredis'
import t from 'tap'
import { Appender } from '../lib/log/appender.ts'
import { Keys } from '../lib/log/keys.ts'
import type { Log, LogEvent } from '../lib/log/log.ts'
import { parseHint } from '../lib/log/redis-format.ts'
import { RedisReplica } from '../lib/replica.ts'
import { decideResume, type Decision } from '../lib/resume.ts'
import { RECORD, TTL_MS, append, appended, newAppend, newSession, newSid, newestOf, nextNumber, readAll, redisLog } from './helpers/logs.ts'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { seededRandom } from './helpers/random.ts'
import { connectRedis, keyPrefix, keysUnder, redisUrl, startRedis } from './helpers/redis.ts'
import type { Owner } from './helpers/teardown.ts'
import { until, within } from './helpers/wait.ts'

const A = 'aaaaaaaa'
const ALL = { seq: 0, offset: -1 }
const payloadsOf = (events: readonly LogEvent[]): string[] => events.map(({ payload }) => payload)

async function setUp (t: Owner, options: Parameters<typeof redisLog>[2] = {}) {
  const prefix = keyPrefix(t)
  const keys = new Keys(prefix)
  const redis = await connectRedis(t)
  return { prefix, keys, redis, log: redisLog(redis, keys, options) }
}

async function decide (log: Log, sid: string, cursor: LogEvent['id']): Promise<Decision> {
  return decideResume(cursor, (await log.snapshot(sid, '', cursor))!)
}

/** What is wrong with a log as a whole: every number once, every offset once, each event after its predecessor. */
async function brokenAt (redis: Redis, keys: Keys, sid: string): Promise<string | undefined> {
  const newest = new Map<string, LogEvent['id']>()
  let last = 0
  for (const [id, [, value]] of await redis.xrange(keys.session(sid)[1], '-', '+')) {
    const [seq, offset] = id.split('-').map(Number) as [number, number]
    const [stream, tag, pseq, ptag] = value!.split(' ') as [string, string, string, string]
    const before = newest.get(stream)
    if (seq !== last + 1) return `${id} comes after ${last}`
    if (offset !== (before?.offset ?? -1) + 1 || Number(pseq) !== (before?.seq ?? 0) || ptag !== (before?.tag ?? '-')) return `${id} does not follow ${JSON.stringify(before)}`
    newest.set(stream, { seq, offset, stream, tag })
    last = seq
  }
  return undefined
}

t.test('B56: two processes append at full speed: numbers without a hole, one order, every event once', async t => {
  const { prefix, keys, redis, log } = await setUp(t)
  const sid = await newSession(log)
  const count = 2500
  const writers = await Promise.all([['b', 0], ['c', -10_000]].map(async ([replica, clockMs]) => {
    const { PATH, HOME } = process.env
    const args = JSON.stringify({ url: redisUrl(), prefix, sid, replica, count, clockMs })
    const child = spawn(process.execPath, ['--import', 'tsx', fileURLToPath(new URL('log-writer.ts', import.meta.url)), args], {
      stdio: ['pipe', 'pipe', 'inherit'], env: { PATH, HOME } as NodeJS.ProcessEnv
    })
    t.teardown(() => child.kill('SIGKILL'))
    const lines = createInterface(child.stdout)[Symbol.asyncIterator]()
    const died = once(child, 'exit').then(([code]) => { throw new Error(`the writer ended with ${code}`) })
    died.catch(() => {})
    const line = async (what: string): Promise<string> => (await within(Promise.race([lines.next(), died]), what, 60_000)).value as string
    await line('a writer to be ready')
    return { child, line }
  }))
  for (const { child } of writers) child.stdin.write('go\n')
  const offsets = await Promise.all(writers.map(async ({ line }) => JSON.parse(await line('a writer to be done')) as number[]))

  const events = (await readAll(log, sid, '1', ALL)).slice(1)
  t.equal(events.length, 2 * count)
  t.equal(await brokenAt(redis, keys, sid), undefined)
  const sent = events.map(({ payload }) => JSON.parse(payload) as { replica: string, i: number })
  for (const [n, replica] of ['b', 'c'].entries()) {
    t.strictSame(sent.filter(event => event.replica === replica).map(({ i }) => i), Array.from({ length: count }, (_, i) => i), `${replica}'s in its own order, once each`)
    t.strictSame(offsets[n], events.filter((_, i) => sent[i]!.replica === replica).map(({ id }) => id.offset), 'each was told its place')
  }
  const changes = sent.filter(({ replica }, i) => i > 0 && sent[i - 1]!.replica !== replica).length
  t.ok(changes > 20, `the two took ${changes} turns`)
})

t.test('numbers keep all their digits, beyond 10^14 and up to 2^53', async t => {
  for (const start of [99_999_999_999_998, 123_456_789_012_345, 2 ** 53 - 12]) {
    const { keys, redis, log } = await setUp(t, { retention: { maxEvents: 3 } })
    const sid = await newSession(log)
    const [hash, entries] = keys.session(sid)
    const counter = (await redis.hget(hash, 'c'))!
    await redis.hset(hash, 'c', counter.replace(/^\d+/, String(start)))
    const first = newAppend(A, ['', '{}'], { open: { connection: 'c1' } })
    const { events } = appended(await log.append(sid, first))
    t.strictSame(events.map(({ id }) => id.seq), [start + 1, start + 2])
    t.strictSame(appended(await log.append(sid, first)).events, events)
    for (let i = 3; i <= 7; i++) t.equal((await append(log, sid, A, ['{}'])).events[0]!.id.seq, start + i)
    const newest = await newestOf(log, sid, A)
    t.strictSame([newest.seq, newest.offset], [start + 7, 6])
    t.match(await log.snapshot(sid, '', newest), { head: start + 7, floor: start + 5, retained: true, stream: { evicted: { seq: start + 4, offset: 3 } } })
    t.strictSame((await readAll(log, sid, A, { seq: start + 4, offset: 3 }, 1)).map(({ id }) => id.seq), [start + 5, start + 6, start + 7])
    t.match(await decide(log, sid, events[1]!.id), { outcome: 'gap', cause: 'evicted', missed: 2 })
    await log.tick(sid, A, { replica: 'a', connection: 'c1' }, newest)
    t.strictSame((await log.stream(sid, A))!.watermark, newest)
    t.strictSame((await redis.xrange(entries, '-', '+')).map(([id]) => id), [5, 6, 7].map(i => `${start + i}-${i - 1}`))
    t.notMatch(JSON.stringify(await redis.hgetall(hash)), /\de\+/)
  }
})

t.test('B20, B58: the log vanishes alone: nothing is resumed with a hole, and the next append repairs the rest', async t => {
  const { keys, redis, log } = await setUp(t)
  const sid = await newSession(log)
  const [, entries] = keys.session(sid)
  const standalone = [...await readAll(log, sid, '1', ALL), ...(await append(log, sid, '1', ['{"n":1}', '{"n":2}'])).events]
  const call = (await append(log, sid, A, ['', '{"n":3}', '{"n":4}'], { open: {} })).events
  await append(log, sid, 'bbbbbbbb', ['', '{"r":1}'], { open: {}, final: true })
  await redis.del(entries)

  const told = async (events: readonly LogEvent[]): Promise<string[]> => await Promise.all(events.map(async ({ id }) => {
    const decision = await decide(log, sid, id)
    return decision.cause === 'evicted' ? `missed ${decision.missed}` : decision.cause
  }))
  t.strictSame(await told(standalone), ['missed 2', 'missed 1', 'caught-up'])
  t.strictSame(await told(call), ['missed 2', 'missed 1', 'caught-up'])
  t.match(await log.snapshot(sid, '', 'watermark'), { head: 8, floor: 9 })
  t.match(await log.read(sid, '1', standalone[0]!.id, 1, 1000), { events: [], more: false })

  const next = (await append(log, sid, '1', ['{"n":5}'])).events[0]!
  t.strictSame([next.id.seq, next.id.offset, next.predecessor!.seq], [9, 3, 3], 'the numbers go on')
  // Seen without a snapshot, which repairs as well.
  t.match((await log.inspect(sid))!, { events: 1, eventsFound: 1, floor: 9 })
  t.match(await log.stream(sid, 'bbbbbbbb'), { finished: true, evicted: { offset: 1 } })
  t.match(await log.snapshot(sid, '', next.id), { head: 9, floor: 9, retained: true })
  t.strictSame(await told([...standalone, next]), ['missed 2', 'missed 1', 'replay', 'caught-up'])
  t.strictSame(await told(call), ['missed 2', 'missed 1', 'caught-up'], 'the other streams are repaired as well')
  await append(log, sid, A, ['{"n":6}'])
  t.strictSame(payloadsOf(await readAll(log, sid, A, call[2]!.id)), ['{"n":6}'])
  t.ok(await redis.pttl(entries) > TTL_MS / 2, 'and it will go with the session')
})

t.test('B20, B58: the hash vanishes, alone or with the log: the session is unknown, and nothing brings it back', async t => {
  const { keys, redis, log } = await setUp(t)
  for (const both of [false, true]) {
    const sid = await newSession(log)
    const [hash, entries] = keys.session(sid)
    const { id } = (await append(log, sid, '1', ['{}'])).events[0]!
    await redis.del(hash, ...both ? [entries] : [])
    t.equal(await log.snapshot(sid, '', id), undefined)
    t.equal(await log.read(sid, '1', id, 0, 1000), undefined)
    t.equal((await log.append(sid, newAppend('1', ['{}']))).status, 'gone')
    t.equal(await log.attach(sid, '1', { replica: 'a', connection: 'c' }), undefined)
    t.equal(await redis.exists(hash), 0)
    await log.create(sid, RECORD, TTL_MS)
    t.match(await decide(log, sid, id), { outcome: 'future' }, 'a session of the same name is another one')
    await append(log, sid, '1', ['{}', '{}'])
    t.match(await decide(log, sid, id), { outcome: 'gap', cause: 'diverged' })
  }
})

t.test('lost replies: no event twice, no hole (B52)', async t => {
  const { keys, redis, log } = await setUp(t)
  const random = seededRandom()
  t.comment(`SEED=${random.seed}`)
  // The library repeats by itself, or never settles: both must come to the same.
  for (const options of [{}, { autoResendUnfulfilledCommands: false, maxRetriesPerRequest: null }] satisfies RedisOptions[]) {
    const proxy = await startFaultProxy(t, redisUrl())
    const client = new Redis(proxy.url, { ...options, retryStrategy: () => 5 })
    t.teardown(() => client.disconnect())
    client.on('error', () => {})
    await once(client, 'ready')
    const sid = await newSession(log)
    const faulty = redisLog(client, keys, { replica: 'b', commandTimeoutMs: 300 })
    await append(log, sid, A, [''], { open: {} })
    let lost = 0
    const appender = new Appender({
      log: faulty, sid, stream: A, replica: 'b', nextToken: nextNumber, maxQueuedBytes: 1024 * 1024, onAppended: () => {}, onOverflow: () => {}, holeNotice: String
    })
    const sent = Array.from({ length: 200 }, (_, n) => JSON.stringify({ n }))
    const ids = []
    const hold = setInterval(() => {}, 1000)
    for (let i = 0; i < sent.length; i += 5) {
      if (random.below(2) === 0 && lost < 20) {
        lost++
        proxy.loseReplyTo(({ name, args }) => name.startsWith('EVAL') && args.includes(A))
      }
      ids.push(...await Promise.all(sent.slice(i, i + 5).map(payload => appender.append(payload))))
    }
    clearInterval(hold)
    t.ok(lost > 8, `${lost} replies lost`)
    t.strictSame(payloadsOf(await readAll(log, sid, A, { seq: 2, offset: 0 })), sent)
    t.strictSame(ids.map(({ offset }) => offset), sent.map((_, i) => i + 1), 'each was told its place')
    t.equal(await brokenAt(redis, keys, sid), undefined)
  }
})

t.test('one command an append, one a read, one a look', async t => {
  const { keys, log } = await setUp(t)
  const proxy = await startFaultProxy(t, redisUrl())
  const counted = redisLog(await connectRedis(t, proxy.url), keys, { retention: { maxEvents: 10 } })
  const sid = await newSession(log)
  await append(counted, sid, A, [''], { open: {} })
  const newest = await newestOf(log, sid, A)
  const commands = async (work: () => Promise<unknown>): Promise<number> => {
    await work()
    const before = proxy.count()
    await work()
    return proxy.count() - before
  }
  t.equal(await commands(() => append(counted, sid, A, ['{}'])), 1)
  t.equal(await commands(() => append(counted, sid, A, Array(64).fill('{}'))), 1, 'a group that evicts as many')
  t.equal(await commands(() => counted.read(sid, A, newest, newest.seq, 1000)), 1)
  t.equal(await commands(() => counted.snapshot(sid, '', newest)), 1)
  t.equal(await commands(() => counted.tick(sid, A, { replica: 'a', connection: 'c' }, newest)), 1)
  t.equal(await commands(() => counted.attach(sid, A, { replica: 'a', connection: `c${nextNumber()}` })), 1)
})

t.test('a token that is older than the last of its replica, come late, is not carried out', async t => {
  const { redis, keys, log } = await setUp(t)
  const sid = await newSession(log)
  const [late, newer] = [newAppend('1', ['{"late":1}']), newAppend('1', ['{"newer":1}'])]
  await log.append(sid, newer)
  t.not((await log.append(sid, late)).status, 'appended')
  t.strictSame(payloadsOf(await readAll(log, sid, '1', { seq: 1, offset: 0 })), ['{"newer":1}'])

  // Of every replica its last token is known, of a bounded number of replicas.
  const tokens = []
  for (let i = 0; i < 100; i++) {
    tokens.push(newAppend('1', [`{"i":${i}}`], { replica: `replica${i}` }))
    await log.append(sid, tokens.at(-1)!)
  }
  const head = (await log.snapshot(sid, '', undefined))!.head
  for (const [i, token] of tokens.slice(-30).entries()) t.match(await log.append(sid, token), { status: 'appended', events: [{ id: { offset: 72 + i } }] })
  t.equal((await log.snapshot(sid, '', undefined))!.head, head)
  t.ok((await redis.hget(keys.session(sid)[0], 's:1'))!.length < 3000)
})

t.test('hints go to the replica that carries the stream, if that is another one', async t => {
  const { keys, redis, log } = await setUp(t)
  const listener = await connectRedis(t)
  const heard: string[] = []
  listener.on('message', (_channel, message: string) => { heard.push(message) })
  await listener.subscribe(keys.channel('a'), keys.channel('b'), keys.everyone)
  // What comes after this mark on the same connection was published after everything before it.
  const settled = async (): Promise<string[]> => {
    const mark = `mark ${nextNumber()}`
    await redis.publish(keys.everyone, mark)
    await until(() => heard.includes(mark), 'the mark is heard')
    return heard.splice(0).filter(message => message !== mark)
  }
  const sid = await newSession(log)
  await append(log, sid, A, [''], { open: { connection: 'c1' } })
  await append(log, sid, A, ['{}'])
  await append(log, sid, '1', ['{}'])
  t.strictSame(await settled(), [], 'carried here, or by nobody')

  t.match(await log.attach(sid, A, { replica: 'b', connection: 'c2' }), { fence: 2 })
  t.strictSame(await settled(), [`taken ${sid} ${A} c1 1`], 'who had it is told')
  const small = await append(log, sid, A, ['{"text":"é\u2028 \\n"}', '{"n":2}'])
  const [hint, ...others] = await settled()
  t.strictSame(others, [])
  t.match(hint, /^hint /)
  t.strictSame(parseHint(hint!.slice('hint '.length)), { sid, stream: A, fence: 2, events: await readAll(log, sid, A, { seq: 3, offset: 1 }) })
  t.equal(small.events.length, 2)

  const fits = JSON.stringify('x'.repeat(16_000))
  await append(log, sid, A, [fits])
  t.strictSame(payloadsOf(parseHint((await settled())[0]!.slice(5))!.events), [fits], 'below 16 KiB the event itself')
  await append(log, sid, A, [JSON.stringify('x'.repeat(16_384))])
  t.strictSame(parseHint((await settled())[0]!.slice(5)), { sid, stream: A, fence: 2, events: [] }, 'above, just that there is one')
  await append(log, sid, A, Array(40).fill(JSON.stringify('x'.repeat(500))))
  t.strictSame(parseHint((await settled())[0]!.slice(5))!.events, [], 'a group counts as a whole')

  await log.attach(sid, A, { replica: 'a', connection: 'c3' })
  t.strictSame(await settled(), [`taken ${sid} ${A} c2 2`])
  await log.terminate(sid)
  t.strictSame(await settled(), [`terminated ${sid}`])
  await log.terminate(sid)
  t.strictSame(await settled(), [])
})

t.test('a hint that is none of ours is not taken for one', async t => {
  const good = `sid ${A} 2\n7-3 ${A} t003 5 t002 1764450000000 m {"a":"b c"}`
  t.match(parseHint(good), { sid: 'sid', stream: A, fence: 2, events: [{ id: { seq: 7, offset: 3, stream: A, tag: 't003' }, predecessor: { seq: 5, tag: 't002' }, payload: '{"a":"b c"}', final: false }] })
  t.match(parseHint(`sid ${A} 2`), { events: [] })
  for (const body of ['', 'sid', `sid ${A}`, `sid ${A} x`, `sid ${A} -1`, `sid ${A} 2\n`, `${good}\n`, good.replace('7-3', '7'), good.replace('7-3', 'x-3'),
    good.replace(' 5 ', ' x '), good.replace(' m ', ' z '), good.replace(' m {', ' {'), good.replace(/ \S+ m.*/, ''), good.replaceAll(' ', '')]) {
    t.equal(parseHint(body), undefined, JSON.stringify(body))
  }
})

t.test('B24, B105: both keys of a session really expire, together', async t => {
  const { prefix, keys, redis, log } = await setUp(t)
  const [long, sid] = [await newSession(log), newSid()]
  const [hash, entries] = keys.session(long)
  await append(log, long, '1', ['{}'])
  t.strictSame(await keysUnder(redis, prefix), [`${prefix}sessions`, hash, entries].sort())
  for (const key of keys.session(long)) {
    const left = await redis.pttl(key)
    t.ok(left > 0 && left <= TTL_MS * 1.125, `${left} ms left`)
  }
  await log.create(sid, RECORD, 100)
  await expired(sid)
  await log.create(sid, RECORD, 100)
  await log.append(sid, newAppend('1', ['{}']))
  await expired(sid)

  async function expired (sid: string): Promise<void> {
    const [hash, entries] = keys.session(sid)
    await until(async () => await redis.exists(hash, entries) === 0, 'both are gone')
    t.equal((await log.append(sid, newAppend('1', ['{}']))).status, 'gone')
    t.equal(await redis.exists(hash, entries), 0)
  }
})

for (const [what, options] of [
  ['a key prefix of the client\'s own', { keyPrefix: 'mine:' }],
  ['RESP3 replies', { replyMapping: 'resp3' }],
  ['RESP2', { protocol: 2 }],
  ['numbers as text', { stringNumbers: true }],
  ['pipelining by itself', { enableAutoPipelining: true }]
] as Array<[string, RedisOptions]>) {
  t.test(`a client with ${what}`, async t => {
    const { prefix, redis } = await setUp(t)
    const client = new Redis(redisUrl(), options as object)
    t.teardown(() => client.disconnect())
    await once(client, 'ready')
    const name = `${prefix}x:`
    if (options.keyPrefix !== undefined) t.teardown(async () => { for (const key of await keysUnder(redis, `mine:${name}`)) await redis.unlink(key) })
    const keys = new Keys(name)
    const log = redisLog(client, keys, { retention: { maxEvents: 4 } })
    const hints: string[] = []
    const replica = new RedisReplica({ id: 'b', redis: client, keys, onReconnect: () => {}, onMalformed: error => t.error(error) })
    replica.on('hint', body => { hints.push(body) })
    replica.on('terminated', () => {})
    t.teardown(() => replica.close())
    const sid = await newSession(log, { principal: 'p', subscriptions: [] })
    await append(log, sid, A, ['', '{"n":1}'], { open: { id: 'x y', connection: 'c1' } })
    t.equal(await log.change(sid, { kind: 'subscribe', uri: 'file:///a' }), true)
    t.equal(await log.change('unknown', { kind: 'logLevel', level: 'info' }), false)
    const last = await append(log, sid, A, ['{"n":2}', '{"n":3}'])
    const newest = last.events[1]!.id
    t.match(await log.snapshot(sid, 'p', newest), { head: 5, floor: 2, retained: true, session: { ...RECORD, principal: 'p', subscriptions: ['file:///a'] }, stream: { newest, evicted: undefined } })
    t.match(await log.snapshot(sid, 'p', 'watermark'), { stream: { evicted: { seq: 1 } }, retained: false })
    t.strictSame(payloadsOf(await readAll(log, sid, A, ALL, 1)), ['', '{"n":1}', '{"n":2}', '{"n":3}'])
    t.match(await log.attach(sid, A, { replica: 'b', connection: 'c2' }), { fence: 2, takeovers: 1, previous: { replica: 'a', connection: 'c1' } })
    t.match(await log.tick(sid, A, { replica: 'b', connection: 'c2' }, newest), { newest, fence: 2 })
    t.match((await log.unfinished(sid)).get(A), { request: { id: 'x y' }, carrier: { connection: 'c2' } })
    t.match(await log.record(sid), { principal: 'p' })
    // Whether the subscription stands is seen by what comes through it.
    await until(async () => {
      if (hints.length === 0) await append(log, sid, A, ['{"n":4}'])
      return hints.length > 0
    }, 'a hint reaches the replica that carries the stream')
    t.match(parseHint(hints[0]!), { sid, stream: A, fence: 2, events: [{ payload: '{"n":4}' }] })
    t.strictSame([await log.sessions(), await log.sessionsOf('p'), await log.terminate(sid), await log.sessions()], [[sid], [sid], true, []])
  })
}

t.test('scripts that Redis has forgotten are sent again', async t => {
  const server = await startRedis(t)
  const redis = await connectRedis(t, server.url)
  const log = redisLog(redis, new Keys('x:'))
  const sid = await newSession(log)
  for (let n = 0; n < 5; n++) {
    await redis.script('FLUSH')
    await Promise.all([append(log, sid, '1', [`{"n":${n}}`]), log.snapshot(sid, '', 'watermark')])
  }
  t.strictSame(payloadsOf(await readAll(log, sid, '1', { seq: 1, offset: 0 })), [0, 1, 2, 3, 4].map(n => `{"n":${n}}`))
})
