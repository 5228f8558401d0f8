// What the bounds of the log do to cursors and streams, as a client sees it on the wire.
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { emitData } from './helpers/emit.ts'
import { backends, startApp, startPair, toolServer } from './helpers/plugin-app.ts'
import { initialize } from './helpers/sse-client.ts'
import type { Answer } from './helpers/sse-client.ts'
import { cursorOf, dataOf, eventsOf, offsets } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

// Those that wait for time to pass wait together.
t.jobs = 8

const outcomeOf = ({ headers }: Answer): string => String(headers['mcp-resume']).replace(/;head=.*/, '')

for (const backend of backends) {
  t.test(`B08: a cursor older than the window is a gap, not the window start (${backend})`, async t => {
    const [a, b] = await startPair(t, backend, { retention: { maxEvents: 10 } })

    await t.test('emitted while detached', async t => {
      const session = await initialize(a.url)
      const { stream, cut } = await session.listen()
      await emitData(a.app, session.sessionId, 1, 3)
      await stream.until(({ message }) => message?.params.data.i === 3)
      cut()
      await emitData(a.app, session.sessionId, 4, 30)
      const gap = await session.at(b.url).resume(cursorOf(stream.frames)!)
      t.equal(outcomeOf(gap), 'gap;cause=evicted;missed=17;replay=10')
      const frames = await gap.stream.until(({ message }) => message?.params?.data?.i === 30)
      t.match(frames.find(({ message }) => message !== undefined)!.message.params.data, { outcome: 'gap', missed: 17 }, 'told first')
      t.strictSame(dataOf(eventsOf(frames)).map(({ i }) => i), offsets(21, 30))
      gap.cut()
    })

    await t.test('every cursor around the border', async t => {
      const session = await initialize(a.url)
      const { stream, cut } = await session.listen()
      await emitData(a.app, session.sessionId, 1, 30)
      const events = eventsOf(await stream.until(({ message }) => message?.params.data.i === 30))
      cut()
      for (const { id, offset } of events) {
        const answer = await session.at(b.url).resume(id)
        const missed = 21 - offset - 1
        t.equal(outcomeOf(answer), missed > 0
          ? `gap;cause=evicted;missed=${missed};replay=10`
          : offset === 30 ? 'resumed;cause=caught-up;replay=0' : `resumed;cause=replay;replay=${30 - offset}`, `e${offset}`)
        const rest = events.slice(Math.max(offset, 20)).map(({ id }) => id)
        const frames = []
        // The rest arrives whole and nothing else does: a new event comes right after it.
        while (eventsOf(frames).length < rest.length) frames.push(await answer.stream.next())
        t.strictSame(eventsOf(frames).map(({ id }) => id), rest)
        answer.cut()
      }
    })

    await t.test('events evicted on another stream are no gap on this one', async t => {
      const session = await initialize(a.url)
      const call = await session.call('tick', { n: 3, ms: 0 })
      await call.response()
      const [, , second] = eventsOf(call.stream.frames)
      // Seven entries of its own stay in the log; the standalone stream's opening goes.
      await emitData(a.app, session.sessionId, 1, 7)
      const answer = await session.at(b.url).resume(second!.id)
      t.equal(outcomeOf(answer), 'resumed;cause=replay;replay=2')
      t.strictSame(eventsOf(await answer.stream.rest()).map(({ offset }) => offset), [3, 4])
    })
  })

  t.test(`B22: a resume of a finished stream ends (${backend})`, async t => {
    const [a, b] = await startPair(t, backend, { retention: { maxEvents: 10 } })
    const session = await initialize(a.url)
    const call = await session.call('echo', { text: 'x' })
    await call.response()
    t.equal(await call.stream.ended, 'end')
    const [opening, result] = eventsOf(call.stream.frames)
    const { resume } = session.at(b.url)

    const nothingLeft = async (cursor: string, cause: string) => {
      const answer = await resume(cursor)
      t.equal(answer.status, 204)
      t.equal(answer.headers['content-type'], undefined, 'browsers and Python take a type for a stream to retry')
      t.match(outcomeOf(answer), cause)
    }
    await nothingLeft(result!.id, 'resumed;cause=caught-up')
    for (const text of ['-1', '0']) t.equal((await resume(text)).status, 400)

    await emitData(a.app, session.sessionId, 1, 20)
    await nothingLeft(result!.id, 'resumed;cause=caught-up')
    const lost = await resume(opening!.id)
    t.equal(outcomeOf(lost), 'gap;cause=evicted;missed=1;replay=0')
    const frames = await lost.stream.rest()
    t.equal(await lost.stream.ended, 'end')
    t.strictSame(frames.map(({ message }) => message?.method ?? message?.id), [undefined, 'notifications/message', call.id])
    t.match(frames.at(-1)!.message.result, { isError: true, content: [{ type: 'text', text: /unknown/ }] })
    await nothingLeft(cursorOf(frames)!, 'resumed;cause=caught-up')

    const never = opening!.id.replace(/-[0-9a-z]{8}-/, '-00000000-')
    await nothingLeft(never, 'gap;cause=expired')
  })

  t.test(`B24: a silent call outlives the session's TTL, and its early events with it (${backend})`, { buffered: true }, async t => {
    let finish = (): void => {}
    const [a, b] = await startPair(t, backend, {
      sessionTtlMs: 1500,
      server: toolServer(async ({ emit }) => {
        await emit('early')
        await new Promise<void>(resolve => { finish = resolve })
        return 'late'
      })
    })
    const session = await initialize(a.url)
    const call = await session.call('any')
    const [opening] = await call.stream.until(({ message }) => message?.params.data === 'early')
    call.cut()
    await sleep(3500)
    finish()
    const answer = await session.at(b.url).resume(opening!.id!)
    t.match(outcomeOf(answer), /^resumed;cause=replay/)
    const events = eventsOf(await answer.stream.rest())
    t.strictSame(events.map(({ offset }) => offset), [1, 2])
    t.match(events[1]!.message.result, { content: [{ text: 'late' }] })
  })

  t.test(`B24: a call silent for longer than the window leaves a gap, not a log that looks whole (${backend})`, { buffered: true }, async t => {
    let finish = (): void => {}
    const [a, b] = await startPair(t, backend, {
      retention: { windowMs: 1000 },
      keepAliveMs: 300,
      retryMs: 300,
      server: toolServer(async ({ emit }) => {
        await emit('early')
        await new Promise<void>(resolve => { finish = resolve })
        return 'late'
      })
    })
    const session = await initialize(a.url)
    const call = await session.call('any')
    const [opening] = await call.stream.until(({ message }) => message?.params.data === 'early')
    call.cut()
    await sleep(1500)
    finish()
    // The final append evicts; before it the early event is still there and a resume is right.
    const answer = await until(async () => {
      const answer = await session.at(b.url).resume(opening!.id!)
      if (!outcomeOf(answer).startsWith('resumed')) return answer
      answer.cut()
      return undefined
    }, 'the result is logged')
    t.equal(outcomeOf(answer), 'gap;cause=evicted;missed=1;replay=1')
    const frames = await answer.stream.rest()
    t.match(frames[1]!.message.params.data, { outcome: 'gap', cause: 'evicted', missed: 1 })
    t.match(frames.at(-1), { id: /^\d+-2-/, message: { result: { content: [{ text: 'late' }] } } })
  })

  t.test(`B24: an open connection keeps a session alive for as long as it is open (${backend})`, { buffered: true }, async t => {
    const app = await startApp(t, backend, { sessionTtlMs: 1500 })
    const session = await initialize(app.url)
    const { stream } = await session.listen()
    const forgotten = await initialize(app.url)
    await sleep(3500)
    t.equal((await forgotten.listen()).status, 404, 'nothing kept this one')
    t.equal(stream.isOpen, true)
    await emitData(app.app, session.sessionId, 1, 1)
    t.match((await stream.until(({ message }) => message !== undefined)).at(-1), { id: /^\d+-1-1-/ })
  })

  t.test(`an event beyond all bounds stays until the next one (${backend})`, async t => {
    const [a, b] = await startPair(t, backend, { retention: { maxBytes: 1024 } })
    const session = await initialize(a.url)
    const call = await session.call('big', { bytes: 5000 })
    await call.response()
    const [opening] = eventsOf(call.stream.frames)
    const resumed = await session.at(b.url).resume(opening!.id)
    t.equal(outcomeOf(resumed), 'resumed;cause=replay;replay=1')
    t.equal(eventsOf(await resumed.stream.rest())[0]!.message.result.content[0].text.length, 5000)

    await emitData(a.app, session.sessionId, 1, 1)
    const lost = await session.at(b.url).resume(opening!.id)
    t.match(outcomeOf(lost), 'gap;cause=evicted;missed=1;replay=0')
    t.match((await lost.stream.rest()).at(-1)!.message, { id: call.id, result: { isError: true } })
    t.ok(a.app.mcp.counters.evictedEarly > 0)
  })
}
