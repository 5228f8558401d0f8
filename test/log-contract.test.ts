// One suite, two backends: what lib/log/log.ts promises.
import t from 'tap'
import { STANDALONE, type EventId } from '../lib/event-id.ts'
import type { Carrier, Log, LogEvent } from '../lib/log/log.ts'
import {
  BACKENDS, RECORD, append, appended, newAppend, newEvents, newSession, newSid, newestOf, readAll, type AppendOptions
} from './helpers/logs.ts'
import { until } from './helpers/wait.ts'

const A = 'aaaaaaaa'
const B = 'bbbbbbbb'
const carrier = (connection: string, replica = 'a'): Carrier => ({ replica, connection })
const seqs = (events: readonly LogEvent[]): number[] => events.map(({ id }) => id.seq)
const parts = ({ seq, offset, stream }: EventId): [number, number, string] => [seq, offset, stream]
const look = async (log: Log, sid: string, cursor: EventId | 'watermark' | undefined = 'watermark') => {
  const snapshot = await log.snapshot(sid, '', cursor)
  if (snapshot === undefined) throw new Error('no session')
  return snapshot
}

for (const { name, open } of BACKENDS) {
  t.test(name, async t => {
    t.test('a new session has its record, its counter at 1 and the opening of its standalone stream', async t => {
      const { log } = await open(t)
      const sid = await newSession(log, { subscriptions: [] })
      const { session, head, floor, stream, retained, cursor } = await look(log, sid)
      t.strictSame(session, RECORD)
      t.strictSame([head, floor, retained], [1, 1, true])
      t.match(stream!.newest, { seq: 1, offset: 0, stream: '1', tag: /^[0-9a-z]{4}$/ })
      t.strictSame([stream!.evicted, stream!.finished, stream!.request, stream!.carrier, stream!.fence], [undefined, false, undefined, undefined, 0])
      t.strictSame([cursor, stream!.watermark], [stream!.newest, stream!.newest])
      t.match(await readAll(log, sid, STANDALONE, { seq: 0, offset: -1 }), [{ id: stream!.newest, predecessor: undefined, payload: '', final: false }])

      await append(log, sid, STANDALONE, ['{"a":1}'])
      await log.create(sid, { ...RECORD, version: '2025-03-26' }, 1)
      t.match(await look(log, sid), { session: RECORD, head: 2 }, 'a repeated create changes nothing')
      t.match(await log.snapshot(sid, '', undefined), { session: RECORD, head: 2, stream: undefined, cursor: undefined, retained: false })
      t.strictSame(await log.record(sid), RECORD)
      t.equal(await log.record(newSid()), undefined)
    })

    t.test('B63: another principal\'s session looks like one that does not exist, and is not kept alive by looking', async t => {
      const { log, elapse } = await open(t)
      const sid = await newSession(log, { principal: 'alice' })
      const { newest } = (await log.snapshot(sid, 'alice', 'watermark'))!.stream!
      for (const cursor of [undefined, 'watermark', newest] as const) {
        for (const principal of ['', 'bob', 'alice ']) t.equal(await log.snapshot(sid, principal, cursor), undefined)
        t.equal(await log.snapshot(newSid(), 'alice', cursor), undefined)
      }
      await elapse(sid, 40_000)
      await log.snapshot(sid, 'bob', 'watermark')
      await elapse(sid, 30_000)
      t.equal(await log.snapshot(sid, 'alice', 'watermark'), undefined)
    })

    t.test('numbers count the session, offsets the stream, and every event names its predecessor', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      const first = await append(log, sid, A, [''], { open: { id: 7, method: 'tools/call', connection: 'c1' } })
      const one = await append(log, sid, STANDALONE, ['{"n":1}'])
      const two = await append(log, sid, A, ['{"n":2}', '{"é":"\u{1f600} "}', '{"n":4}'])
      const last = await append(log, sid, A, ['{"r":1}'], { final: true })
      t.strictSame([first, one, two, last].flatMap(({ events }) => events.map(({ id }) => parts(id))), [
        [2, 0, A], [3, 1, '1'], [4, 1, A], [5, 2, A], [6, 3, A], [7, 4, A]
      ])
      t.match(first, { finished: false, carrier: { replica: 'a', connection: 'c1' }, fence: 1, evictedEarly: 0 })
      t.match(one, { finished: false, carrier: undefined, fence: 0 })
      t.match(last, { finished: true })

      const events = await readAll(log, sid, A, { seq: 0, offset: -1 })
      t.match([first, two, last].flatMap(({ events }) => events), events, 'append answered what is read')
      t.strictSame(events.map(({ predecessor }) => predecessor), [undefined, ...events.slice(0, -1).map(({ id: { seq, tag } }) => ({ seq, tag }))])
      t.strictSame(events.map(({ final }) => final), [false, false, false, false, true])
      t.match(await log.stream(sid, A), { newest: last.events[0]!.id, finished: true, runner: 'a', request: { id: 7, method: 'tools/call' } })
      t.match(await look(log, sid, events[2]!.id), { head: 7, retained: true, cursor: events[2]!.id, stream: { newest: last.events[0]!.id } })
      for (const other of [{ tag: 'none' }, { offset: 1 }, { seq: 4 }, { stream: STANDALONE }]) {
        t.equal((await look(log, sid, { ...events[2]!.id, ...other })).retained, false, JSON.stringify(other))
      }
    })

    t.test('the client\'s request id keeps its JSON type and any text', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      for (const [i, id] of [7, '7', 0, -1, '', 'a b "c" \\ \u{1f600}\u2028', '- - -', 2 ** 53 - 1].entries()) {
        const stream = `stream0${i}`
        await append(log, sid, stream, [''], { open: { id, method: 'x y/é' } })
        t.match((await log.stream(sid, stream))!.request, { id, method: 'x y/é' })
      }
    })

    t.test('refusals: gone, unknown, finished, changed; nothing is written', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      await append(log, sid, A, ['', '{}'], { open: {} })
      const status = async (stream: string, options: AppendOptions = {}, of = sid) => (await log.append(of, newAppend(stream, ['{}'], options))).status
      t.equal(await status(STANDALONE, {}, newSid()), 'gone')
      t.equal(await status(A, { open: {} }, newSid()), 'gone')
      t.equal(await status(B), 'unknown')
      const newest = await newestOf(log, sid, A)
      for (const other of [{ seq: 2 }, { tag: 'none' }]) t.equal(await status(A, { expect: { ...newest, ...other } }), 'changed')
      t.equal((await look(log, sid)).head, 3)
      t.equal(await status(A, { expect: newest, final: true }), 'appended')
      t.equal(await status(A), 'finished')
      t.equal(await status(A, { open: {} }), 'finished', 'a finished stream is not opened again')
      t.equal((await log.append(sid, newAppend(A, [], { finish: true }))).status, 'finished')
      t.equal((await look(log, sid)).head, 4)
    })

    t.test('a repeated token is answered with the same events, and does nothing again', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      const opening = newAppend(A, ['', '{"n":1}', '{"n":2}'], { open: { connection: 'c1' } })
      const batch = newAppend(A, ['{"n":3}', '{"n":4}'])
      const single = newAppend(STANDALONE, ['{"n":5}'])
      const final = newAppend(A, ['{"r":1}'], { final: true })
      for (const one of [opening, batch, single, final]) {
        const before = appended(await log.append(sid, one))
        t.strictSame(appended(await log.append(sid, one)), before)
        // Streams of others go on meanwhile.
        await append(log, sid, `${nextStream()}`, [''], { open: {} })
        t.strictSame(appended(await log.append(sid, one)).events, before.events)
      }
      await append(log, sid, B, [''], { open: {} })
      const cancel = newAppend(B, [], { finish: true })
      t.equal((await log.append(sid, cancel)).status, 'appended')
      t.equal((await log.append(sid, cancel)).status, 'appended')
      t.strictSame((await readAll(log, sid, A, { seq: 0, offset: -1 })).map(({ payload }) => payload), ['', '{"n":1}', '{"n":2}', '{"n":3}', '{"n":4}', '{"r":1}'])
      t.strictSame((await readAll(log, sid, STANDALONE, { seq: 1, offset: 0 })).map(({ payload }) => payload), ['{"n":5}'])
      t.equal((await look(log, sid)).head, 1 + 3 + 2 + 1 + 1 + 4 + 1)
    })

    t.test('finish ends a stream without a response', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      await append(log, sid, A, [''], { open: {} })
      t.match(await append(log, sid, A, ['{"n":1}'], { finish: true }), { finished: true, events: [{ final: false }] })
      await append(log, sid, B, [''], { open: { digest: 'other' } })
      t.match(await append(log, sid, B, [], { finish: true }), { finished: true, events: [] })
      t.match([(await log.stream(sid, A))!.finished, (await log.stream(sid, B))!.finished], [true, true])
      t.match((await log.read(sid, A, { seq: 2, offset: 0 }, 2, 1000))!, { more: false, stream: { finished: true } })
    })

    t.test('a request sent again while it runs is told of its stream', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      await append(log, sid, A, [''], { open: { digest: 'one' } })
      t.strictSame(await log.append(sid, newAppend(B, [''], { open: { digest: 'one' } })), { status: 'duplicate', stream: A })
      t.equal((await look(log, sid)).head, 2)
      t.equal((await log.append(sid, newAppend('cccccccc', [''], { open: { digest: 'two' } }))).status, 'appended')
      await append(log, sid, A, ['{}'], { final: true })
      t.equal((await log.append(sid, newAppend(B, [''], { open: { digest: 'one' } }))).status, 'appended', 'the first one is over')
    })

    t.test('pages are bounded in bytes, hold one event at least, and lead on', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      await append(log, sid, A, [''], { open: {} })
      const payloads = Array.from({ length: 40 }, (_, i) => JSON.stringify({ i, text: 'x'.repeat(i === 20 ? 3000 : 100) }))
      for (const payload of payloads) {
        await append(log, sid, A, [payload])
        await append(log, sid, STANDALONE, ['{"other":1}', '{"other":2}'])
      }
      for (const most of [1, 1000, 2000, 100_000]) {
        const page = (await log.read(sid, A, { seq: 2, offset: 0 }, 2, most))!
        const bytes = page.events.reduce((sum, { payload }) => sum + payload.length, 0)
        t.ok(page.events.length === 1 || bytes <= most, `${page.events.length} events, ${bytes} bytes of ${most}`)
        t.equal(page.more, page.events.length < payloads.length)
        t.strictSame((await readAll(log, sid, A, { seq: 2, offset: 0 }, most)).map(({ payload }) => payload), payloads)
      }
      const newest = await newestOf(log, sid, A)
      t.match(await log.read(sid, A, newest, newest.seq, 1000), { events: [], more: false, stream: { newest } })
      t.equal(await log.read(sid, B, newest, newest.seq, 1000), undefined)
      t.equal(await log.read(newSid(), A, newest, newest.seq, 1000), undefined)
    })

    t.test('the newest connection carries the stream, and the fence tells the others', async t => {
      const { log, elapse } = await open(t)
      const sid = await newSession(log)
      await append(log, sid, A, [''], { open: { connection: 'c0' } })
      t.strictSame(await log.attach(sid, A, carrier('c1')), { fence: 2, runner: 'a', previous: carrier('c0'), takeovers: 1 })
      t.strictSame(await log.attach(sid, A, carrier('c1')), { fence: 2, runner: 'a', previous: undefined, takeovers: 0 }, 'the same connection again')
      t.match(await append(log, sid, A, ['{}']), { fence: 2, carrier: carrier('c1') })
      t.match(await log.attach(sid, A, carrier('c2')), { fence: 3, takeovers: 2 })
      t.match(await log.attach(sid, A, carrier('c3')), { fence: 4, takeovers: 3 })
      await elapse(sid, 10_001)
      t.match(await log.attach(sid, A, carrier('c4')), { fence: 5, takeovers: 1 }, 'a fight is over after 10 s')

      const newest = await newestOf(log, sid, A)
      await log.detach(sid, A, carrier('c3'), newest)
      t.match(await log.stream(sid, A), { carrier: carrier('c4'), watermark: { seq: 2, offset: 0 } }, 'who does not carry it cannot detach it')
      t.match(await log.tick(sid, A, carrier('c3'), newest), { fence: 5, carrier: carrier('c4'), watermark: { seq: 2 } })
      t.match(await log.tick(sid, A, carrier('c4'), newest), { newest, fence: 5 })
      t.strictSame((await log.stream(sid, A))!.watermark, newest, 'a tick of the carrier notes its position')
      await log.detach(sid, A, carrier('c4'), newest)
      t.match(await log.stream(sid, A), { carrier: undefined, watermark: newest, fence: 5 })
      t.match(await log.attach(sid, A, carrier('c5')), { fence: 6, previous: undefined, takeovers: 0 }, 'nobody was displaced')
      t.strictSame([await log.attach(sid, B, carrier('c')), await log.attach(newSid(), A, carrier('c'))], [undefined, undefined])
      t.strictSame([await log.tick(sid, B, carrier('c'), newest), await log.tick(newSid(), A, carrier('c'), newest)], [undefined, undefined])
    })

    t.test('a GET without a cursor goes on where the last connection stood', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      const [first] = (await append(log, sid, STANDALONE, ['{"n":1}', '{"n":2}'])).events
      t.match(await look(log, sid), { cursor: { seq: 1, offset: 0 }, retained: true }, 'nobody has listened yet')
      await log.attach(sid, STANDALONE, carrier('c1'))
      await log.detach(sid, STANDALONE, carrier('c1'), first!.id)
      t.match(await look(log, sid), { cursor: first!.id, retained: true })
    })

    t.test('the record changes step by step', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      const change = async (...changes: Array<Parameters<Log['change']>[1]>) => {
        for (const one of changes) t.equal(await log.change(sid, one), true)
        return (await log.record(sid))!
      }
      t.match(await change({ kind: 'initialized', ttlMs: 1000 }), { initialized: true })
      t.match(await change({ kind: 'logLevel', level: 'warning' }), { logLevel: 'warning' })
      const uris = ['file:///a', 'file:///"b"\\é\u2028', 'x y']
      t.match(await change(...uris.map(uri => ({ kind: 'subscribe', uri }) as const)), { subscriptions: uris })
      t.strictSame([...(await change({ kind: 'subscribe', uri: uris[0]! })).subscriptions].sort(), [...uris].sort(), 'once each')
      t.strictSame((await change({ kind: 'unsubscribe', uri: uris[0]! }, { kind: 'unsubscribe', uri: 'never' })).subscriptions, uris.slice(1))
      t.strictSame((await change(...uris.map(uri => ({ kind: 'unsubscribe', uri }) as const))).subscriptions, [])
      t.match((await look(log, sid)).session, { initialized: true, logLevel: 'warning', subscriptions: [] })
      t.equal(await log.change(newSid(), { kind: 'logLevel', level: 'info' }), false)
    })

    t.test('subscriptions are bounded', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      const subscribe = (uri: string) => log.change(sid, { kind: 'subscribe', uri })
      await Promise.all(Array.from({ length: 1000 }, (_, i) => subscribe(`r:${i}`)))
      await subscribe('r:1000')
      const full = (await log.record(sid))!.subscriptions
      t.equal(full.length, 1000)
      t.notOk(full.includes('r:1000'))
      await subscribe('r:0')
      t.equal((await log.record(sid))!.subscriptions.length, 1000, 'one of them again')
    })

    t.test('unfinished requests, and the sessions that may be alive', async t => {
      const { log, elapse } = await open(t)
      const [sid, other] = [await newSession(log, { principal: 'p' }), await newSession(log, { principal: 'p' })]
      await append(log, sid, A, [''], { open: { id: 1 } })
      await append(log, sid, B, [''], { open: { id: 'two' }, replica: 'b' })
      await append(log, sid, 'cccccccc', ['', '{}'], { open: {}, final: true })
      const unfinished = await log.unfinished(sid)
      t.strictSame([...unfinished.keys()].sort(), [A, B])
      t.match(unfinished.get(B), { runner: 'b', request: { id: 'two' }, finished: false })
      t.equal((await log.unfinished(newSid())).size, 0)

      t.strictSame((await log.sessions()).sort(), [sid, other].sort())
      await log.touch([])
      const noted = performance.now()
      await elapse(other, 20_000)
      await until(() => performance.now() > noted + 5, 'the clock has moved')
      await log.change(sid, { kind: 'logLevel', level: 'info' })
      await log.touch([])
      t.strictSame(await log.sessionsOf('p'), [other, sid], 'the longest idle first, as of the last touch')
      t.strictSame(await log.sessionsOf('q'), [])
      await log.terminate(other)
      t.strictSame([await log.sessionsOf('p'), await log.sessions()], [[sid], [sid]])
    })

    t.test('unknown ids leave no trace', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      const unknown = newSid()
      const id = { seq: 1, offset: 0, stream: STANDALONE, tag: 'none' }
      await Promise.all([
        log.snapshot(unknown, '', 'watermark'), log.snapshot(sid, 'mallory', 'watermark'), log.snapshot(unknown, '', id), log.touch([unknown]),
        log.tick(unknown, STANDALONE, carrier('c'), id), log.attach(unknown, STANDALONE, carrier('c')), log.detach(unknown, STANDALONE, carrier('c'), id),
        log.append(unknown, newAppend(STANDALONE, ['{}'])), log.read(unknown, STANDALONE, id, 0, 1), log.change(unknown, { kind: 'logLevel', level: 'info' })
      ])
      await log.touch([sid])
      t.strictSame(await log.sessions(), [sid])
      await log.terminate(unknown)
      await log.touch([sid])
      t.strictSame(await log.sessions(), [sid])
    })

    t.test('nothing revives a session that was terminated', async t => {
      const { log } = await open(t)
      const sid = await newSession(log)
      await append(log, sid, A, [''], { open: {} })
      const newest = await newestOf(log, sid, A)
      t.equal(await log.terminate(sid), true)
      t.equal(await log.terminate(sid), false)
      t.equal((await log.append(sid, newAppend(STANDALONE, ['{}']))).status, 'gone')
      t.equal((await log.append(sid, newAppend(B, [''], { open: {} }))).status, 'gone')
      t.equal((await log.append(sid, { ...newAppend(A, [], { finish: true }), events: newEvents([]) })).status, 'gone')
      t.strictSame(await Promise.all([
        log.snapshot(sid, '', newest), log.record(sid), log.stream(sid, A), log.read(sid, A, newest, 0, 1000),
        log.attach(sid, A, carrier('c1')), log.tick(sid, A, carrier('c1'), newest)
      ]), Array(6).fill(undefined))
      await log.detach(sid, A, carrier('c1'), newest)
      await log.touch([sid])
      t.equal(await log.change(sid, { kind: 'initialized', ttlMs: 60_000 }), false)
      t.equal((await log.unfinished(sid)).size, 0)
      t.strictSame(await log.sessions(), [])
      t.equal(await log.record(sid), undefined)
    })

    t.test('B24, B105: a session lives for its time after any activity, and no longer', async t => {
      const { log, elapse } = await open(t)
      const activities: Record<string, (sid: string, newest: EventId) => Promise<unknown>> = {
        snapshot: sid => log.snapshot(sid, '', undefined),
        'snapshot with a cursor': (sid, newest) => log.snapshot(sid, '', newest),
        append: sid => append(log, sid, STANDALONE, ['{}']),
        attach: sid => log.attach(sid, STANDALONE, carrier('c1')),
        tick: (sid, newest) => log.tick(sid, STANDALONE, carrier('c1'), newest),
        touch: sid => log.touch([sid]),
        change: sid => log.change(sid, { kind: 'logLevel', level: 'info' }),
        'initialized, with a longer life': sid => log.change(sid, { kind: 'initialized', ttlMs: 600_000 })
      }
      for (const [what, activity] of Object.entries(activities)) {
        const longer = what.startsWith('initialized') ? 540_000 : 0
        const sid = await newSession(log)
        await elapse(sid, 40_000)
        await activity(sid, await newestOf(log, sid, STANDALONE))
        await elapse(sid, 55_000 + longer)
        t.ok(await log.record(sid), `${what} keeps it`)
        await elapse(sid, 70_000 + longer)
        t.equal(await log.record(sid), undefined, `not for ever: ${what}`)
        t.equal((await log.append(sid, newAppend(STANDALONE, ['{}']))).status, 'gone')
      }
      const sid = await newSession(log)
      await elapse(sid, 40_000)
      await Promise.all([log.record(sid), log.stream(sid, STANDALONE), log.unfinished(sid), log.sessions()])
      await elapse(sid, 28_000)
      t.equal(await log.record(sid), undefined, 'looking alone keeps nothing; 60 s until the handshake is done')
    })

    t.test('retention by count: oldest first, over all streams', async t => {
      const { log } = await open(t, { maxEvents: 5 })
      const sid = await newSession(log)
      const early = []
      for (let i = 0; i < 10; i++) early.push((await append(log, sid, i === 0 ? A : STANDALONE, ['{}'], i === 0 ? { open: {} } : {})).evictedEarly)
      t.strictSame(early, [0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
      t.match(await look(log, sid), { head: 11, floor: 7, stream: { evicted: { seq: 6, offset: 4 } } })
      t.match(await log.stream(sid, A), { newest: { seq: 2 }, evicted: { seq: 2, offset: 0 } })
      t.strictSame(seqs(await readAll(log, sid, STANDALONE, { seq: 0, offset: -1 })), [7, 8, 9, 10, 11])
      t.equal((await append(log, sid, STANDALONE, Array(12).fill('{}'))).evictedEarly, 12, 'a batch larger than the log')
      t.match(await look(log, sid), { head: 23, floor: 19 })
    })

    t.test('retention by bytes: the newest event stays however large it is', async t => {
      const { log } = await open(t, { maxBytes: 4000 })
      const sid = await newSession(log)
      for (let i = 0; i < 20; i++) await append(log, sid, STANDALONE, [JSON.stringify('x'.repeat(498))])
      const kept = await readAll(log, sid, STANDALONE, { seq: 0, offset: -1 })
      t.ok(kept.length >= 7 && kept.length <= 8, `${kept.length} of 500 bytes`)
      t.match(await append(log, sid, STANDALONE, [JSON.stringify('x'.repeat(9000))]), { evictedEarly: kept.length })
      t.match(await look(log, sid), { head: 22, floor: 22 })
      await append(log, sid, STANDALONE, ['{}'])
      t.match(await look(log, sid), { head: 23, floor: 23 }, 'and goes with the next')
    })

    t.test('retention by age: at append, at most 64 at a time, not counted as early', async t => {
      const { log, elapse } = await open(t, { windowMs: 30_000 })
      const sid = await newSession(log)
      for (let i = 0; i < 4; i++) await append(log, sid, STANDALONE, Array(50).fill('{}'))
      await elapse(sid, 25_000)
      t.match(await look(log, sid), { head: 201, floor: 1 })
      await append(log, sid, STANDALONE, ['{}'])
      await elapse(sid, 6000)
      t.match(await look(log, sid), { head: 202, floor: 1 }, 'nothing goes but at append')
      const floors = []
      for (let i = 0; i < 4; i++) {
        t.equal((await append(log, sid, STANDALONE, ['{}'])).evictedEarly, 0)
        floors.push((await look(log, sid)).floor)
      }
      t.strictSame(floors, [65, 129, 193, 202], 'what is inside the window stays')
      await elapse(sid, 31_000)
      await append(log, sid, STANDALONE, ['{}'])
      t.match(await look(log, sid), { head: 207, floor: 207 })
    })

    t.test('finished streams whose events are gone are remembered, a bounded number of them', async t => {
      const { log } = await open(t, { maxEvents: 1 })
      const sid = await newSession(log)
      const name = (i: number): string => `s${String(i).padStart(7, '0')}`
      for (let i = 0; i < 1100; i += 100) {
        await Promise.all(Array.from({ length: 100 }, (_, j) => append(log, sid, name(i + j), ['', '{}'], { open: {}, final: true })))
      }
      // Of the last one the final event is retained; 1099 are retired, of which 1000 are kept.
      const known = await Promise.all(Array.from({ length: 1100 }, async (_, i) => await log.stream(sid, name(i)) !== undefined))
      t.equal(known.indexOf(true), 99)
      t.ok(known.slice(99).every(Boolean))
      t.match(await log.stream(sid, name(500)), { finished: true, newest: { offset: 1 }, evicted: { offset: 1 } })
      await append(log, sid, A, [''], { open: {} })
      await append(log, sid, STANDALONE, ['{}'])
      await append(log, sid, A, [], { finish: true })
      t.match(await log.stream(sid, A), { finished: true }, 'finished after its events were evicted')
      t.equal(await log.stream(sid, name(100)), undefined, 'so it took a place')
    })
  })
}

let streams = 0
function nextStream (): string {
  return `x${String(++streams).padStart(7, '0')}`
}
