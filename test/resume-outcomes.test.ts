// What a cursor is answered with, as a client sees it on the wire.
import t from 'tap'
import type { Test } from 'tap'
import { emitData } from './helpers/emit.ts'
import { backends, startApp, startPair } from './helpers/plugin-app.ts'
import { connectRedis, keyPrefix, keysUnder } from './helpers/redis.ts'
import { initialize } from './helpers/sse-client.ts'
import type { Answer } from './helpers/sse-client.ts'
import { cursorOf, eventsOf, offsets } from './helpers/stream-events.ts'
import type { StreamEvent } from './helpers/stream-events.ts'

for (const backend of backends) {
  t.test(`B01: every cursor has an answer, and only a resume looks like one (${backend})`, async t => {
    const [a, b] = await startPair(t, backend, { retention: { maxEvents: 10 } })
    const session = await initialize(a.url)
    const { sessionId } = session
    await (await session.request('resources/subscribe', { uri: 'note://hello' })).response()
    const live = await session.listen()
    await emitData(a.app, sessionId, 1, 50)
    const seen = eventsOf(await live.stream.until(({ message }) => message?.params.data?.i === 50))
    live.cut()
    const at = (offset: number): StreamEvent => seen[offset - 1]!
    t.strictSame(seen.map(({ offset }) => offset), offsets(1, 50))
    const { resume } = session.at(b.url)
    let newest = 50

    // The answer up to `count` frames, then one event that is logged only now.
    async function read (t: Test, answer: Answer, count: number) {
      const frames = []
      while (frames.length < count) frames.push(await answer.stream.next())
      await emitData(a.app, sessionId, ++newest, newest)
      const live = await answer.stream.next()
      t.match(live.message.params.data, { i: newest }, 'goes on live')
      answer.cut()
      return { header: String(answer.headers['mcp-resume']), frames, live }
    }

    await t.test('(a) retained: the rest, then live', async t => {
      const answer = await resume(at(45).id)
      t.equal(answer.status, 200)
      const { header, frames } = await read(t, answer, 6)
      t.equal(header, `resumed;cause=replay;replay=5;head="${at(50).id}"`)
      t.match(frames[0], { data: '', id: new RegExp(`^${at(45).id}\\.[0-9a-z]{2,4}$`) }, 're-primed')
      t.strictSame(eventsOf(frames).map(({ id }) => id), seen.slice(45).map(({ id }) => id))
    })

    await t.test('(b) older than the log: a gap with its size, told before anything else', async t => {
      const floor = newest - 9
      const { header, frames } = await read(t, await resume(at(5).id), 6 + 10)
      t.match(header, new RegExp(`^gap;cause=evicted;missed=${floor - 6};replay=10;head="`))
      t.match(frames[0], { data: '', id: new RegExp(`^${at(5).id}\\.`) }, 'a drop right here loses nothing that follows')
      t.match(frames[1], { id: undefined, message: { method: 'notifications/message', params: { level: 'error' } } })
      t.match(frames[1]!.message.params.data, { outcome: 'gap', cause: 'evicted', missed: floor - 6, from: at(5).id })
      t.strictSame(frames.slice(2, 6).map(({ id, message }) => [id, message.method]), [
        [undefined, 'notifications/tools/list_changed'],
        [undefined, 'notifications/prompts/list_changed'],
        [undefined, 'notifications/resources/list_changed'],
        [undefined, 'notifications/resources/updated']
      ], 'what the client has to read again')
      t.strictSame(eventsOf(frames).map(({ offset }) => offset), offsets(floor, floor + 9), 'what is left')
    })

    await t.test('(c) ahead of the log: future, told like a gap, and led back to the newest event', async t => {
      const { seq, offset } = at(50)
      const ahead = `${seq + 1000}-${offset + 1000}-1-zzzz`
      const { header, frames, live } = await read(t, await resume(ahead), 6)
      t.match(header, /^future;cause=ahead;.*head="/)
      t.match(frames[1]!.message.params, { level: 'error', data: { outcome: 'future', cause: 'ahead', from: ahead } })
      const cursor = cursorOf(frames)!
      t.equal(header.match(/head="(.*)"/)![1], cursor, 'the last frame moves the cursor')
      t.equal(eventsOf([live])[0]!.offset, newest)
      t.equal(b.app.mcp.counters.future, 1)
      const again = await resume(cursor)
      t.match(again.headers['mcp-resume'], /^resumed;cause=replay;replay=1;/)
      again.cut()
    })

    await t.test('(d) no event ID: refused', async t => {
      for (const text of ['nonsense', '47', '47-12', '0-0-1-abcd', '7-7-1-abcd', `${at(45).id}x`, '-1', '0']) {
        const answer = await resume(text)
        t.equal(answer.status, 400, text)
        t.match(answer.json(), { jsonrpc: '2.0', id: null, error: { message: /Last-Event-ID/ } })
      }
    })

    await t.test('(e) of another session: answered as an ID that nobody ever issued', async t => {
      // The issue of refusing it like (d) does not arise: it is well-formed, and DESIGN.md section 5 decides from this log alone.
      const other = await initialize(a.url)
      const stream = (await other.listen()).stream
      await emitData(a.app, other.sessionId, 1, 70)
      const foreign = eventsOf(await stream.until(({ message }) => message?.params.data?.i === 70))
      const headSeq = at(50).seq + newest - 50
      for (const { id, seq, offset } of [foreign[4]!, foreign[newest - 6]!, foreign[newest - 1]!, foreign[69]!]) {
        const made = id.replace(/....$/, tag => tag === 'none' ? 'nine' : 'none')
        const answers = []
        for (const cursor of [id, made]) {
          const answer = await resume(cursor)
          const header = String(answer.headers['mcp-resume'])
          t.match(header, /^(gap|future);/)
          const left = header.includes('evicted') ? 10 : Math.max(0, headSeq - seq)
          const frames = []
          while (frames.length < 6 + left) frames.push(await answer.stream.next())
          answer.cut()
          const text = JSON.stringify(frames.map(({ id, data }) => [id, data])).replaceAll(cursor, 'cursor').replace(/cursor\.\w+/, 'cursor')
          answers.push({ status: answer.status, header, text })
        }
        t.strictSame(answers[0], answers[1], `offset ${offset}`)
      }
    })

    await t.test('(f) an empty header is none', async t => {
      const answers = [await resume(''), await session.at(b.url).listen()]
      for (const { status, headers, cut } of answers) {
        t.equal(status, 200)
        t.match(headers['mcp-resume'], /^fresh;/)
        cut()
      }
    })
  })
}

t.test('B20: a log that starts again never continues an old cursor (redis)', async t => {
  const prefix = keyPrefix(t)
  const redis = await connectRedis(t)
  const a = await startApp(t, 'redis', { keyPrefix: prefix })
  // A session with twenty events and the IDs of all of them.
  const begin = async () => {
    const session = await initialize(a.url)
    const { stream, cut } = await session.listen()
    await emitData(a.app, session.sessionId, 1, 10)
    await stream.until(({ message }) => message?.params.data.i === 10)
    const [hash, log] = [`${prefix}{${session.sessionId}}`, `${prefix}{${session.sessionId}}:log`]
    const copies = await Promise.all([hash, log].map(async key => ({ key, copy: await redis.dumpBuffer(key) })))
    await emitData(a.app, session.sessionId, 11, 20)
    await stream.until(({ message }) => message?.params.data.i === 20)
    const ids = eventsOf(stream.frames).map(({ id }) => id)
    cut()
    return { session, hash, log, copies, id: (i: number) => ids[i - 1]! }
  }
  const outcome = async (answer: Answer) => {
    answer.cut()
    return `${answer.status} ${String(answer.headers['mcp-resume']).replace(/;(replay|head)=.*/, '')}`
  }

  await t.test('the log alone is gone: the counter is not, so what follows is still known exactly', async t => {
    // DESIGN.md section 4 keeps the counter with the session, so here e20 is rightly resumed: e21 does follow it.
    const { session, log, id } = await begin()
    t.equal(await redis.del(log), 1)
    t.equal(await outcome(await session.resume(id(20))), '200 resumed;cause=caught-up', 'nothing came after it yet')
    t.equal(await outcome(await session.resume(id(2))), '200 gap;cause=evicted;missed=18')
    await emitData(a.app, session.sessionId, 21, 25)
    const resumed = await session.resume(id(20))
    const events = eventsOf(await resumed.stream.until(({ message }) => message?.params.data.i === 25))
    t.strictSame(events.map(({ offset }) => offset), offsets(21, 25))
    t.equal(await outcome(resumed), '200 resumed;cause=replay')
    t.equal(await outcome(await session.resume(id(2))), '200 gap;cause=evicted;missed=18')
  })

  await t.test('the counter is gone: so is the session, and nothing revives it', async t => {
    const { session, hash, log, id } = await begin()
    await redis.multi().hdel(hash, 'c').del(log).exec()
    await t.rejects(emitData(a.app, session.sessionId, 21, 25))
    t.equal(await outcome(await session.resume(id(20))), '404 undefined')
    t.equal((await session.call('echo', { text: 'x' })).status, 404)
    t.equal(await redis.exists(log), 0)
  })

  await t.test('everything is gone: an unknown session, with no key left behind', async t => {
    const { session, hash, log, id } = await begin()
    await redis.del(hash, log)
    await t.rejects(emitData(a.app, session.sessionId, 21, 25))
    for (const cursor of [id(20), id(2)]) t.equal(await outcome(await session.resume(cursor)), '404 undefined')
    t.notOk((await keysUnder(redis, prefix)).some(key => key.includes(session.sessionId)))
  })

  await t.test('an older copy came back and its numbers are issued again', async t => {
    const { session, copies, id } = await begin()
    for (const { key, copy } of copies) await redis.restore(key, 0, copy, 'REPLACE')
    // A replica that has never seen the lost numbers; one that has goes on above them.
    const b = await startApp(t, 'redis', { keyPrefix: prefix })
    const { resume } = session.at(b.url)
    t.equal(await outcome(await resume(id(20))), '200 future;cause=ahead')
    await emitData(b.app, session.sessionId, 11, 15)
    t.equal(await outcome(await resume(id(20))), '200 future;cause=ahead')
    for (const lost of [id(11), id(13), id(15)]) {
      t.equal(await outcome(await resume(lost)), '200 gap;cause=diverged', `${lost} is inside the new range`)
    }
    const common = await resume(id(2))
    const events = eventsOf(await common.stream.until(({ message }) => message?.params.data.i === 15))
    t.strictSame(events.map(({ offset }) => offset), offsets(3, 15), 'e2 is from before the copy: nothing is missing after it')
    t.equal(await outcome(common), '200 resumed;cause=replay')

    await emitData(b.app, session.sessionId, 16, 30)
    t.equal(await outcome(await resume(id(20))), '200 gap;cause=diverged', 'the new counter has passed the old cursor')
  })
})

t.test('B20: a process that starts again has none of the old sessions (memory)', async t => {
  const before = await startApp(t, 'memory')
  const session = await initialize(before.url)
  const { stream } = await session.listen()
  await emitData(before.app, session.sessionId, 1, 5)
  const ids = eventsOf(await stream.until(({ message }) => message?.params.data.i === 5)).map(({ id }) => id)
  const after = await startApp(t, 'memory')
  for (const id of ids) {
    const answer = await session.at(after.url).resume(id)
    t.equal(answer.status, 404)
    t.match(answer.json(), { error: { code: -32001 }, id: null })
  }
})
