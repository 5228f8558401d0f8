// The decision on real logs: what a snapshot says must be what the decision takes it for, and what is read afterwards
// must be what the decision promised.
import fc from 'fast-check'
import t from 'tap'
import { parseEventId, formatEventId, type EventId } from '../lib/event-id.ts'
import { Keys } from '../lib/log/keys.ts'
import type { Log, LogEvent, NewEvent } from '../lib/log/log.ts'
import { decideResume } from '../lib/resume.ts'
import { cursorsFor, judge, sameEvents, words, type History } from './helpers/history.ts'
import { BACKENDS, append, newSession, newSid, newestOf, readAll, redisLog } from './helpers/logs.ts'
import { connectRedis, keyPrefix } from './helpers/redis.ts'

const STREAMS = ['1', 'aaaaaaaa', 'bbbbbbbb']

/** Asks the log about every cursor, reads as the decision says, and has both judged. */
async function faults (log: Log, sid: string, history: History, streams: readonly string[], counts: Record<string, number>): Promise<string[]> {
  const found = await Promise.all(cursorsFor(history, streams).map(async cursor => {
    const snapshot = (await log.snapshot(sid, '', cursor))!
    const decision = decideResume(cursor, snapshot)
    const { outcome, cause, start } = decision
    const key = `${outcome} ${cause}`
    counts[key] = (counts[key] ?? 0) + 1
    const position = { offset: -1, ...start ?? cursor }
    const delivered = start === undefined ? [] : await readAll(log, sid, cursor.stream, position, 1)
    const fault = judge(history, cursor, decision, delivered.map(({ id }) => id))
    return fault && `${fault}: ${JSON.stringify({ cursor, decision, history })}`
  }))
  return found.filter(fault => fault !== undefined).slice(0, 3)
}

/** One event on each of `streams`, in the log and in the history. */
async function goOn (log: Log, sid: string, history: History, streams: readonly string[], maxEvents: number): Promise<History> {
  let { events, evicted, issued } = history
  for (const stream of streams) {
    const { events: [event] } = await append(log, sid, stream, [events.some(other => other.stream === stream) ? '{}' : ''], { open: {} })
    events = [...events, event!.id]
    issued = [...issued, event!.id]
    evicted = Math.max(evicted, events.length - maxEvents)
  }
  return { events, evicted, issued }
}

async function begin (log: Log): Promise<{ sid: string, history: History }> {
  const sid = await newSession(log)
  const opening = await newestOf(log, sid, '1')
  return { sid, history: { events: [opening], evicted: 0, issued: [opening] } }
}

const everyOutcome = ['resumed replay', 'resumed caught-up', 'gap evicted', 'gap diverged', 'gap expired', 'future ahead']

for (const { name, open } of BACKENDS) {
  t.test(`${name}: every cursor on every small log, evicted from by retention`, async t => {
    const counts: Record<string, number> = {}
    const wrong: string[] = []
    for (const maxEvents of [1, 2, 3, 100]) {
      const { log } = await open(t, { maxEvents })
      for (let length = 0; length <= (name === 'memory' ? 4 : 3); length++) {
        for (const word of words(STREAMS, length)) {
          const { sid, history } = await begin(log)
          wrong.push(...await faults(log, sid, await goOn(log, sid, history, word, maxEvents), STREAMS, counts))
        }
      }
    }
    t.strictSame(wrong.slice(0, 3), [])
    t.comment(JSON.stringify(counts))
    for (const key of everyOutcome) t.ok(counts[key]! > 30, `${key} occurs`)
  })

  t.test(`${name}: pages are the stream's events in order, whichever way they are found`, async t => {
    const { log } = await open(t)
    // Long runs of other streams make the way back along the predecessors the shorter one.
    const segment = fc.record({ stream: fc.nat(2), count: fc.oneof({ weight: 3, arbitrary: fc.integer({ min: 1, max: 4 }) }, fc.integer({ min: 20, max: 64 })), size: fc.integer({ min: 2, max: 300 }) })
    const question = fc.record({ stream: fc.nat(2), after: fc.nat(), skip: fc.nat(), maxBytes: fc.oneof({ weight: 1, arbitrary: fc.constant(1) }, { weight: 4, arbitrary: fc.integer({ min: 300, max: 5000 }) }) })
    let pages = 0
    await fc.assert(fc.asyncProperty(fc.array(segment, { minLength: 1, maxLength: 12 }), fc.array(question, { minLength: 12, maxLength: 12 }), async (segments, questions) => {
      const sid = await newSession(log)
      const all: LogEvent[] = await readAll(log, sid, '1', { seq: 0, offset: -1 })
      for (const { stream, count, size } of segments) {
        const { events } = await append(log, sid, STREAMS[stream]!, Array(count).fill(JSON.stringify('x'.repeat(size))), { open: {} })
        all.push(...events)
      }
      for (const { stream: s, after, skip, maxBytes } of questions) {
        const stream = STREAMS[s]!
        const mine = all.filter(({ id }) => id.stream === stream)
        if (mine.length === 0) continue
        const at = after % mine.length
        const position = mine[at]!.id
        const left = mine.slice(at + 1)
        // A reader may have scanned on, over what is not its own.
        const scanned = position.seq + skip % ((left[0]?.id.seq ?? all.at(-1)!.id.seq + 1) - position.seq)
        // Far too low an offset hides how few are missing, so the log has to be scanned.
        for (const offset of [position.offset, -1000]) {
          const page = (await log.read(sid, stream, { seq: position.seq, offset }, scanned, maxBytes))!
          pages++
          const got = page.events.map(({ id }) => id)
          if (!sameEvents(got, left.slice(0, got.length).map(({ id }) => id))) return false
          if (page.events.some(({ payload, predecessor }, i) => payload !== left[i]!.payload || predecessor!.seq !== (i === 0 ? position : left[i - 1]!.id).seq)) return false
          if (!page.more && got.length < left.length) return false
          if (got.length > 1 && page.events.reduce((sum, { payload }) => sum + payload.length, 0) > maxBytes) return false
          if (page.scanned < (got.at(-1)?.seq ?? scanned) || (left[got.length] !== undefined && page.scanned >= left[got.length]!.id.seq)) return false
          const rest = await readAll(log, sid, stream, { seq: position.seq, offset }, maxBytes)
          if (!sameEvents(rest.map(({ id }) => id), left.map(({ id }) => id))) return false
        }
      }
      return true
    }), { numRuns: 25 })
    t.comment(`${pages} pages`)
    t.ok(pages > 100)
  })
}

t.test('redis: every cursor after a rollback to every point, gone on with by a replica that remembers and one that does not', async t => {
  const keys = new Keys(keyPrefix(t))
  const redis = await connectRedis(t)
  const streams = STREAMS.slice(0, 2)
  const counts: Record<string, number> = {}
  const wrong: string[] = []
  let logs = 0
  const dump = async (sid: string): Promise<Buffer[]> => await Promise.all(keys.session(sid).map(async key => (await redis.dumpBuffer(key))!))
  const restore = async (sid: string, dumps: readonly Buffer[]): Promise<void> => {
    await Promise.all(keys.session(sid).map((key, i) => redis.restore(key, 60_000, dumps[i]!, 'REPLACE')))
  }
  for (const [maxEvents, written, more] of [[2, 3, 1], [100, 3, 1], [2, 2, 2]] as const) {
    const before = redisLog(redis, keys, { retention: { maxEvents } })
    for (const word of words(streams, written)) {
      const { sid, history } = await begin(before)
      const states: Array<{ dumps: Buffer[], history: History }> = [{ dumps: await dump(sid), history }]
      for (const stream of word) {
        const next = await goOn(before, sid, states.at(-1)!.history, [stream], maxEvents)
        states.push({ dumps: await dump(sid), history: next })
      }
      const last = states.at(-1)!
      for (const { dumps, history: then } of states.slice(0, -1)) {
        for (let length = 0; length <= more; length++) {
          for (const continuation of words(streams, length)) {
            for (const remembers of length === 0 ? [false] : [false, true]) {
              const copy = newSid()
              const after = redisLog(redis, keys, { retention: { maxEvents }, replica: 'b' })
              await restore(copy, last.dumps)
              if (remembers) await after.snapshot(copy, '', undefined)
              await restore(copy, dumps)
              const now = await goOn(after, copy, { ...then, issued: last.history.issued }, continuation, maxEvents)
              if (remembers && now.events.at(-length)!.seq <= last.history.events.at(-1)!.seq) wrong.push('a number was issued again although a replica remembers it')
              wrong.push(...await faults(after, copy, now, streams, counts))
              logs++
            }
          }
        }
      }
    }
  }
  t.strictSame(wrong.slice(0, 3), [], `${logs} logs`)
  t.comment(JSON.stringify(counts))
  for (const key of everyOutcome) t.ok(counts[key]! > 30, `${key} occurs`)
})

t.test('B57: one call\'s events never land on another call\'s stream after a rollback', async t => {
  // The numbers are issued again, the stream's name is not: both calls have the same seq and offset.
  const lost = parseEventId('3-1-aaaaaaaa-0001')!
  const again = parseEventId('3-1-bbbbbbbb-0002')!
  t.notSame(formatEventId(lost), formatEventId(again))
  const keys = new Keys(keyPrefix(t))
  const redis = await connectRedis(t)
  const log = redisLog(redis, keys)
  const sid = await newSession(log)
  const [hash, entries] = await Promise.all(keys.session(sid).map(key => redis.dumpBuffer(key)))
  const call = async (log: Log, stream: string): Promise<EventId> => (await append(log, sid, stream, ['', '{"call":1}'], { open: {} })).events[1]!.id
  const cursor = await call(log, 'aaaaaaaa')
  for (const [key, dump] of [[keys.session(sid)[0], hash], [keys.session(sid)[1], entries]] as const) await redis.restore(key, 60_000, dump!, 'REPLACE')
  const fresh = redisLog(redis, keys, { replica: 'b' })
  const other = await call(fresh, 'bbbbbbbb')
  t.strictSame([cursor.seq, cursor.offset], [other.seq, other.offset])
  const decision = decideResume(cursor, (await fresh.snapshot(sid, '', cursor))!)
  t.match(decision, { outcome: 'gap', cause: 'expired' })
})

t.test('an event\'s tag is the caller\'s, so that a repeated append has the same', async t => {
  for (const { open } of BACKENDS) {
    const { log } = await open(t)
    const sid = await newSession(log)
    const events: NewEvent[] = ['k3f9', 'zzzz'].map(tag => ({ tag, payload: '{}', final: false }))
    const reply = await log.append(sid, { stream: '1', events, token: { replica: 'a', n: 1 } })
    t.match(reply, { status: 'appended', events: [{ id: { seq: 2, offset: 1, tag: 'k3f9' } }, { id: { seq: 3, offset: 2, tag: 'zzzz' }, predecessor: { seq: 2, tag: 'k3f9' } }] })
  }
})
