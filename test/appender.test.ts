import { setImmediate, setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { Carriers } from '../lib/carriers.ts'
import { newCounters } from '../lib/counters.ts'
import { DuplicateRequest, LogAway, NotAppended, SessionGone } from '../lib/errors.ts'
import { Appender, type AppenderOptions } from '../lib/log/appender.ts'
import type { Append, AppendReply, Appended, Log } from '../lib/log/log.ts'
import { MemoryLog } from '../lib/log/memory-log.ts'
import { patiently } from '../lib/log/patience.ts'
import { Outbox } from '../lib/outbox.ts'
import { RECORD, RETENTION, TTL_MS, newSession, readAll } from './helpers/logs.ts'
import { seededRandom } from './helpers/random.ts'
import type { Owner } from './helpers/teardown.ts'
import { until, within } from './helpers/wait.ts'

interface Rig {
  readonly appender: Appender
  readonly log: MemoryLog
  readonly sid: string
  /** Every attempt, also those that failed. */
  readonly attempts: Append[]
  readonly replies: Appended[]
  readonly overflows: number
  /** The most appends that were in flight together. */
  readonly most: number
  payloads (): Promise<string[]>
}

type Fault = (append: Append, apply: () => Promise<AppendReply>) => Promise<AppendReply>

const STREAM = 'aaaaaaaa'
const OPEN: AppenderOptions['open'] = { request: { id: 1, method: 'tools/call', digest: 'd' }, carrier: undefined }

/** An appender on a log of this process, whose every append goes through `fault` first. */
async function rig (t: Owner, fault: Fault = (_append, apply) => apply(), options: Partial<AppenderOptions> = {}): Promise<Rig> {
  const log = new MemoryLog(RETENTION)
  t.teardown(() => log.close())
  const sid = await newSession(log)
  const state = { attempts: [] as Append[], replies: [] as Appended[], overflows: 0, most: 0 }
  let inFlight = 0
  let tokens = 0
  const faulty = {
    append: async (sid: string, append: Append): Promise<AppendReply> => {
      state.attempts.push(append)
      state.most = Math.max(state.most, ++inFlight)
      try {
        return await fault(append, () => log.append(sid, append))
      } finally {
        inFlight--
      }
    }
  } as unknown as Log
  const appender = new Appender({
    log: faulty,
    sid,
    stream: STREAM,
    replica: 'a',
    open: OPEN,
    nextToken: () => ++tokens,
    maxQueuedBytes: 1024 * 1024,
    onAppended: reply => { state.replies.push(reply) },
    onOverflow: () => { state.overflows++ },
    holeNotice: dropped => `{"hole":${dropped}}`,
    ...options
  })
  // A timer that holds the process: those of the appender do not.
  const hold = setInterval(() => {}, 1000)
  t.teardown(() => clearInterval(hold))
  return {
    appender,
    log,
    sid,
    attempts: state.attempts,
    replies: state.replies,
    get overflows () { return state.overflows },
    get most () { return state.most },
    payloads: async () => (await readAll(log, sid, options.stream ?? STREAM, { seq: 0, offset: -1 })).map(({ payload }) => payload)
  }
}

const numbered = (n: number): string[] => Array.from({ length: n }, (_, i) => `{"n":${i}}`)

t.test('B33: production order under random latency, one append in flight, bursts in groups', async t => {
  const random = seededRandom()
  t.comment(`SEED=${random.seed}`)
  const rigged = await rig(t, async (_append, apply) => {
    await sleep(random.between(0, 4))
    const reply = await apply()
    await sleep(random.between(0, 4))
    return reply
  })
  const { appender, attempts, replies, payloads } = rigged
  const resolved: number[] = []
  const opening = appender.append('')
  const sent = numbered(600)
  const promises = []
  for (const payload of sent) {
    promises.push(appender.append(payload).then(({ offset }) => { resolved.push(offset) }))
    if (random.below(20) === 0) await sleep(random.between(0, 5))
  }
  t.match(await opening, { seq: 2, offset: 0, stream: STREAM })
  await Promise.all(promises)
  t.strictSame(await payloads(), ['', ...sent])
  t.strictSame(resolved, sent.map((_, i) => i + 1), 'promises resolve in order, each with its own ID')
  t.strictSame(replies.flatMap(({ events }) => events.map(({ id }) => id.offset)), [0, ...sent.map((_, i) => i + 1)])
  t.equal(rigged.most, 1)
  t.ok(attempts.length < sent.length / 2, `${attempts.length} appends`)
  t.ok(attempts.every(({ events }) => events.length <= 64))
  t.ok(attempts.some(({ events }) => events.length > 1))
})

t.test('a quiet stream appends at once, message by message', async t => {
  const { appender, attempts } = await rig(t)
  t.ok(appender.idle)
  await appender.append('')
  for (const payload of numbered(3)) await appender.append(payload)
  await setImmediate()
  t.ok(appender.idle)
  t.strictSame(attempts.map(({ events }) => events.length), [1, 1, 1, 1])
  t.strictSame(attempts.map(({ token }) => token.n), [1, 2, 3, 4])
})

t.test('a group has at most 64 messages and about a MiB', async t => {
  const { appender, attempts, payloads } = await rig(t, undefined, { maxQueuedBytes: 64 * 1024 * 1024 })
  const large = JSON.stringify('x'.repeat(400_000))
  const huge = JSON.stringify('x'.repeat(3_000_000))
  const sent = ['', ...numbered(100), large, large, large, huge, '{}']
  await Promise.all(sent.map(payload => appender.append(payload)))
  t.strictSame(await payloads(), sent)
  t.strictSame(attempts.map(({ events }) => events.length), [1, 64, 38, 1, 1, 1])
})

t.test('B25, B52: an append of unknown fate is repeated under its token until it is known', async t => {
  let turn = 0
  let lost = 0
  const { appender, attempts, payloads } = await rig(t, async (_append, apply) => {
    // Every second answer is lost, of an append that was applied or of one that never arrived.
    if (turn++ % 2 === 0 && lost < 12) {
      if (lost++ % 2 === 0) await apply()
      throw new LogAway('lost')
    }
    return await apply()
  })
  const sent = numbered(100)
  const ids = []
  for (let i = -1; i < sent.length; i += 5) {
    ids.push(...await Promise.all((i === -1 ? [''] : sent.slice(i - 4, i + 1)).map(payload => appender.append(payload))))
  }
  t.strictSame(await payloads(), ['', ...sent])
  t.strictSame(ids.map(({ offset }) => offset), ids.map((_, i) => i))
  t.equal(lost, 12)
  const byToken = new Map<number, Append['events']>()
  for (const { token, events } of attempts) {
    if (byToken.has(token.n) && byToken.get(token.n) !== events) t.fail('other events under the same token')
    byToken.set(token.n, events)
  }
})

t.test('another error is no unknown fate: the messages are rejected, later ones go on', async t => {
  let broken = true
  const { appender, attempts, payloads } = await rig(t, async (_append, apply) => {
    if (!broken) return await apply()
    throw new Error('broken')
  })
  await t.rejects(appender.append(''), { message: 'broken' })
  t.equal(attempts.length, 1)
  broken = false
  await appender.append('')
  t.strictSame(await payloads(), [''])
})

t.test('abandoned: an append whose fate is unknown is repeated no longer', async t => {
  const { appender, attempts } = await rig(t, async () => { throw new LogAway('away') })
  const appended = appender.append('')
  await until(() => attempts.length >= 2, 'it was repeated')
  appender.abandon()
  await t.rejects(appended, LogAway)
  const tries = attempts.length
  await t.rejects(appender.append(''), LogAway)
  t.equal(attempts.length, tries + 1)
  await until(() => appender.idle, 'nothing is left')
})

t.test('what waits is bounded in bytes: refused, told once, and the hole is announced before what comes after', async t => {
  let release = (): void => {}
  let away = new Promise<void>(resolve => { release = resolve })
  const rigged = await rig(t, async (_append, apply) => {
    await away
    return await apply()
  }, { maxQueuedBytes: 1000 })
  const { appender, payloads } = rigged
  const kept = [appender.append(''), appender.append('x'.repeat(700)), appender.append('y'.repeat(300))]
  for (let i = 0; i < 5; i++) await t.rejects(appender.append('z'.repeat(i === 0 ? 400 : 1)), NotAppended)
  t.equal(rigged.overflows, 1)
  release()
  await Promise.all(kept)
  await until(() => appender.idle, 'all is appended')
  await appender.append('after')
  t.strictSame(await payloads(), ['', 'x'.repeat(700), 'y'.repeat(300), '{"hole":5}', 'after'])

  away = new Promise<void>(resolve => { release = resolve })
  const more = [appender.append('a'), appender.append('b'.repeat(1000))]
  await t.rejects(appender.append('c'), NotAppended)
  t.equal(rigged.overflows, 2, 'told again after there was room')
  const final = appender.append('f'.repeat(2000), true)
  release()
  await Promise.all([...more, final])
  await until(() => appender.idle, 'all is appended')
  t.strictSame((await payloads()).slice(-3).map(([char]) => char), ['a', 'b', 'f'], 'a final response is taken in any case')
})

t.test('one message larger than all that may wait is taken when nothing waits', async t => {
  const { appender, payloads } = await rig(t, undefined, { maxQueuedBytes: 1000 })
  await appender.append('')
  await appender.append('x'.repeat(5000))
  t.equal((await payloads())[1]!.length, 5000)
})

t.test('finish goes in order with the messages before it, and ends the stream', async t => {
  const rigged = await rig(t)
  const { appender, attempts, log, sid, payloads } = rigged
  await appender.append('')
  const order: string[] = []
  const done = (what: string) => () => { order.push(what) }
  const first = appender.append('{"n":1}').then(done('first'))
  const second = appender.append('{"n":2}').then(done('second'))
  const finished = appender.finish().then(done('finish'))
  const late = appender.append('{"n":3}').then(done('late'), done('refused'))
  await Promise.all([first, second, finished, late])
  t.strictSame(order, ['first', 'second', 'finish', 'refused'])
  t.strictSame(await payloads(), ['', '{"n":1}', '{"n":2}'])
  t.strictSame(attempts.map(({ events, finish }) => [events.length, finish]), [[1, false], [1, false], [1, true], [1, false]])
  t.match(await log.stream(sid, STREAM), { finished: true })
  await appender.finish()
  t.pass('finishing what is finished is no error')
})

t.test('a final response ends its group; what comes after is refused', async t => {
  const { appender, payloads, attempts } = await rig(t)
  const results = await Promise.allSettled([appender.append(''), appender.append('{"n":1}'), appender.append('{"r":1}', true), appender.append('{"n":2}')])
  t.strictSame(results.map(({ status }) => status), ['fulfilled', 'fulfilled', 'fulfilled', 'rejected'])
  t.strictSame(await payloads(), ['', '{"n":1}', '{"r":1}'])
  t.strictSame(attempts.map(({ events }) => events.length), [1, 2, 1])
})

t.test('refusals reject with what the log says', async t => {
  const { appender, log, sid } = await rig(t)
  await appender.append('')
  const twin = new Appender({
    log, sid, stream: 'bbbbbbbb', replica: 'a', open: OPEN, nextToken: () => 1000, maxQueuedBytes: 1000, onAppended: () => {}, onOverflow: () => {}, holeNotice: String
  })
  await t.rejects(twin.append(''), new DuplicateRequest(STREAM))
  await log.terminate(sid)
  await t.rejects(appender.append('{}'), { code: 'MCP_RESUME_ERR_SESSION_GONE', message: sid })
})

t.test('a stream that the log has lost is opened again, once, also when that answer is lost too', async t => {
  let lose = 0
  const { appender, log, sid, payloads, attempts } = await rig(t, async (append, apply) => {
    const reply = await apply()
    if (append.open !== undefined && lose-- > 0) throw new LogAway('lost')
    return reply
  })
  await appender.append('')
  // A failover that lost the stream, as far as an appender can tell.
  await log.terminate(sid)
  await log.create(sid, RECORD, TTL_MS)
  lose = 2
  const ids = await within(Promise.all([appender.append('{"n":1}'), appender.append('{"n":2}')]), 'the stream to be opened again')
  t.strictSame(await payloads(), ['{"n":1}', '{"n":2}'], 'once each')
  t.strictSame(ids.map(({ offset }) => offset), [0, 1])
  t.match(await log.stream(sid, STREAM), { runner: 'a', request: { id: 1 } })
  const opening = attempts.filter(({ open, events }) => open !== undefined && events[0]!.payload === '{"n":1}')
  t.strictSame(new Set(opening.map(({ token }) => token.n)).size, 1, 'under one token')

  await log.terminate(sid)
  await t.rejects(appender.append('{}'), SessionGone, 'a session that is gone is not')
})

t.test('what is told of an append comes before its promises', async t => {
  const order: string[] = []
  const { appender } = await rig(t, undefined, { onAppended: ({ events }) => { order.push(`told ${events.map(({ payload }) => payload).join()}`) } })
  await Promise.all(['', 'a', 'b'].map(payload => appender.append(payload).then(() => { order.push(`resolved ${payload}`) })))
  t.strictSame(order, ['told ', 'resolved ', 'told a,b', 'resolved a', 'resolved b'])
})

t.test('patience: a log that is away is asked again for a while, anything else is told at once', async t => {
  let tries = 0
  t.equal(await patiently(10_000, async () => {
    if (++tries < 3) throw new LogAway('away')
    return 'there'
  }), 'there')
  t.equal(tries, 3)
  tries = 0
  const away = async (): Promise<never> => {
    tries++
    throw new LogAway('away')
  }
  await t.rejects(patiently(250, away), LogAway)
  t.ok(tries >= 2, `asked ${tries} times`)
  tries = 0
  await t.rejects(patiently(0, away), LogAway)
  t.equal(tries, 1)
  await t.rejects(patiently(10_000, async () => { throw new RangeError('other') }), RangeError)
})

t.test('outbox: one appender for all who write to a standalone stream, tokens that never repeat, and one warning', async t => {
  const log = new MemoryLog({ ...RETENTION, maxEvents: 2 })
  t.teardown(() => log.close())
  const carriers = new Carriers()
  const hinted: string[] = []
  carriers.hint = ({ stream, events }) => { hinted.push(`${stream}:${events.map(({ payload }) => payload).join()}`) }
  const counters = newCounters()
  const warnings: string[] = []
  const outbox = new Outbox({ log, replica: 'a', carriers, counters, maxQueuedBytes: 1000, warn: (_details, message) => { warnings.push(message) } })
  const [sid, other] = [await newSession(log), await newSession(log)]
  const first = outbox.standalone(sid)
  t.equal(outbox.standalone(sid), first)
  t.not(outbox.standalone(other), first)
  t.strictSame([outbox.nextToken(), outbox.nextToken()], [1, 2])

  await Promise.all(['1', '2', '3', '4'].map(payload => first.append(payload)))
  t.strictSame(hinted, [], 'nobody carries it here')
  await log.attach(sid, '1', { replica: 'b', connection: 'c' })
  await first.append('5')
  t.strictSame(hinted, [], 'nor is it told here what another replica carries')
  await log.attach(sid, '1', { replica: 'a', connection: 'c' })
  await log.attach(sid, '1', { replica: 'a', connection: 'd' })
  await first.append('6')
  t.strictSame(hinted, ['1:6'])
  t.equal(counters.evictedEarly, 5)
  t.equal(warnings.length, 1, 'early eviction is told once per session')

  const overflowed: string[] = []
  const call = outbox.request(sid, STREAM, OPEN, () => { overflowed.push('ended') })
  const kept = [call.append(''), call.append('x'.repeat(1000))]
  await t.rejects(call.append('y'), NotAppended)
  await Promise.all(kept)
  t.strictSame([counters.overflowed, overflowed, warnings.length], [1, ['ended'], 2])

  await setImmediate()
  outbox.sweep()
  t.not(outbox.standalone(sid), first, 'what has nothing to do is forgotten')
})
