// What a client has not received comes back: which events, in which order, how often.
import { setTimeout as sleep } from 'node:timers/promises'
import { McpServer } from '@modelcontextprotocol/server'
import t from 'tap'
import { startBalancer } from './helpers/balancer.ts'
import { emitData } from './helpers/emit.ts'
import { backends, startApp, startPair, toolServer } from './helpers/plugin-app.ts'
import { initialize } from './helpers/sse-client.ts'
import { connectStock } from './helpers/stock-clients.ts'
import { cursorOf, dataOf, eventsOf, offsets } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

for (const backend of backends) {
  t.test(`B02: every event has an ID of its own, and a resume brings what is after it (${backend})`, async t => {
    const [a, b] = await startPair(t, backend)
    const session = await initialize(a.url)
    const { stream, cut } = await session.listen()
    await (await session.call('emit', { n: 3, ms: 0 })).response()
    const first = eventsOf(await stream.until(({ message }) => message?.params.data.i === 3))
    cut()
    await (await session.at(b.url).call('emit', { n: 2, ms: 0 })).response()
    const resumed = await session.at(b.url).resume(first[1]!.id)
    const rest = eventsOf(await resumed.stream.until(({ message }) => message?.params.data.i === 2))
    t.strictSame(dataOf(rest).map(({ i }) => i), [3, 1, 2])
    const all = [...first.slice(0, 2), ...rest]
    t.strictSame(all.map(({ offset }) => offset), offsets(1, 5))
    t.equal(new Set(all.map(({ id }) => id)).size, 5)
    t.ok(all.every(({ seq }, i) => i === 0 || seq > all[i - 1]!.seq), 'numbers only grow')
    resumed.cut()
  })

  t.test(`B03: a result produced while nobody is attached is stored and replayed once (${backend})`, async t => {
    let finish = (): void => {}
    const gate = new Promise<void>(resolve => { finish = resolve })
    let failure: unknown
    const [a, b] = await startPair(t, backend, {
      server: toolServer(async ({ emit, signal }) => {
        await gate
        await emit('detached').catch(error => { failure = error })
        failure ??= signal.aborted ? 'aborted' : undefined
        return 'result'
      })
    })
    const session = await initialize(a.url)
    const call = await session.call('any')
    const opening = await call.stream.next()
    call.cut()
    await until(() => a.app.mcp.load.connections === 0, 'the server has seen the cut')
    finish()
    const rest = await until(async () => {
      const answer = await session.at(b.url).resume(opening.id!)
      if (/^resumed;cause=replay;replay=2;/.test(String(answer.headers['mcp-resume']))) return answer
      answer.cut()
      return undefined
    }, 'both are in the log')
    const events = eventsOf(await rest.stream.rest())
    t.equal(await rest.stream.ended, 'end')
    t.match(events.map(({ message }) => message), [{ params: { data: 'detached' } }, { id: call.id, result: { content: [{ text: 'result' }] } }])
    t.equal(failure, undefined, 'the handler notices nothing')
    t.equal((await session.resume(events[1]!.id)).status, 204, 'not a second time')
  })

  t.test(`B05: what was written into a dead pipe is not taken for delivered (${backend})`, async t => {
    let go = (): void => {}
    const gate = new Promise<void>(resolve => { go = resolve })
    let finished = false
    const [a, b] = await startPair(t, backend, {
      server: toolServer(async ({ emit }) => {
        for (let i = 1; i <= 5; i++) {
          await emit(i)
          if (i === 2) await gate
        }
        finished = true
        return 'result'
      })
    })
    const balancer = await startBalancer(t, [a.url])
    const session = await initialize(balancer.url)
    const call = await session.call('any')
    const received = eventsOf(await call.stream.until(({ message }) => message?.params.data === 2))
    t.equal(balancer.hole(({ isOpen }) => isOpen), 1)
    go()
    await until(() => finished, 'the call is over')
    const resumed = await session.at(b.url).resume(received.at(-1)!.id)
    const events = eventsOf(await resumed.stream.rest())
    t.strictSame(dataOf(events), [3, 4, 5])
    t.match(events.at(-1)!.message, { id: call.id, result: { content: [{ text: 'result' }] } })
    t.strictSame(eventsOf(call.stream.frames), received, 'nothing came through the hole')
  })

  t.test(`B06: the cursor comes before the work begins, so a stock client resumes (${backend})`, async t => {
    const [a, b] = await startPair(t, backend)
    const balancer = await startBalancer(t, [a.url, b.url])
    const session = await initialize(a.url)
    const call = await session.call('slow', { ms: 60_000 })
    t.match(await call.stream.next(), { id: /^\d+-0-[0-9a-z]{8}-/, data: '' }, 'the first frame, while the tool runs')
    call.cut()

    const reconnectionOptions = { initialReconnectionDelay: 50, maxReconnectionDelay: 500, reconnectionDelayGrowFactor: 1.5, maxRetries: 5 }
    for (const version of [1, 2] as const) {
      const client = await connectStock(t, version, balancer.url, { reconnectionOptions })
      const text = client.callText('slow', { ms: 1000 })
      const isCall = ({ method, responseHeaders, bytes }: typeof balancer.requests[number]): boolean =>
        method === 'POST' && responseHeaders?.['content-type'] === 'text/event-stream' && bytes > 0
      await until(() => balancer.cut(isCall), 'the call is cut')
      t.equal(await text, 'slept 1000', `SDK ${version}`)
      const resumes = balancer.requests.filter(({ method, headers }) => method === 'GET' && /-0-[0-9a-z]{8}-/.test(String(headers['last-event-id'])))
      t.ok(resumes.length >= version, 'it came back with the opening event')
    }
  })

  t.test(`B14: order and stream survive whatever characters a request ID has (${backend})`, async t => {
    const [a, b] = await startPair(t, backend)
    const session = await initialize(a.url)
    const { stream, cut } = await session.listen()
    await (await session.call('emit', { n: 20, ms: 0 })).response()
    const [,, third] = eventsOf(await stream.until(({ message }) => message?.params.data.i === 3))
    cut()
    const resumed = await session.at(b.url).resume(third!.id)
    const missed = eventsOf(await resumed.stream.until(({ message }) => message?.params.data.i === 20))
    t.strictSame(dataOf(missed).map(({ i }) => i), offsets(4, 20))
    resumed.cut()

    const ids = ['a_b', '_GET_stream', 'a:b', 'a-b', '47-12-1-k3f9', 'a/b', '../..', '%2e', '{x}', '*', ' ', '', '日本-é', '💥', 'x'.repeat(2000), 0, -1, 2 ** 53 - 1]
    for (const id of ids) {
      const call = await session.call('tick', { n: 3, ms: 0 }, { id })
      const received = eventsOf(await call.stream.until(({ message }) => message?.params.data.progress === 1))
      call.cut()
      const answer = await session.at(b.url).resume(received.at(-1)!.id)
      const events = eventsOf(await answer.stream.rest())
      t.strictSame([dataOf(events).map(({ progress }) => progress), events.at(-1)!.message.id], [[2, 3], id], JSON.stringify(id).slice(0, 40))
    }
  })

  t.test(`B18: the opening is the lowest event of its stream, however fast the tool is (${backend})`, async t => {
    const [a, b] = await startPair(t, backend, {
      server: toolServer(async ({ emit }) => {
        const sent = emit('at once')
        await sleep(10)
        await sent
        return 'result'
      })
    })
    const session = await initialize(a.url)
    let runs = 0
    const wrong: unknown[] = []
    await Promise.all(Array.from({ length: 20 }, async () => {
      // Five hundred over both kinds of log.
      while (runs++ < 250) {
        const call = await session.call('any')
        const opening = await call.stream.next()
        call.cut()
        const rest = await session.at(b.url).resume(opening.id!)
        const events = eventsOf([opening, ...await rest.stream.rest()])
        const [first, second, third] = events
        if (events.length !== 3 || opening.data !== '' || dataOf([second!])[0] !== 'at once' || third!.message.id !== call.id ||
          !events.every(({ offset }, i) => offset === i) || !(first!.seq < second!.seq && second!.seq < third!.seq)) wrong.push(events)
      }
    }))
    t.strictSame(wrong, [])
  })

  t.test(`B26: a notification sent before the listener attaches waits for it (${backend})`, async t => {
    const { app, url } = await startApp(t, backend, {
      server: () => {
        const mcp = new McpServer({ name: 'test', version: '1' }, { capabilities: { logging: {}, tools: { listChanged: true } } })
        mcp.server.oninitialized = () => { mcp.sendLoggingMessage({ level: 'info', data: 'welcome' }).catch(error => { t.error(error) }) }
        return mcp
      }
    })
    const session = await initialize(url)
    t.equal(await app.mcp.toolsChanged(), 1)
    const attached = await session.listen()
    t.match(attached.headers['mcp-resume'], /^fresh;replay=2;/)
    await attached.stream.until(({ message }) => message?.method === 'notifications/tools/list_changed')
    t.strictSame(eventsOf(attached.stream.frames).map(({ message }) => message.params?.data ?? message.method), ['welcome', 'notifications/tools/list_changed'])
    attached.cut()

    // A client that flaps, and never says where it was.
    const received: unknown[] = []
    for (let i = 1; i <= 30; i++) {
      await until(() => app.mcp.load.connections === 0, 'nobody listens')
      await emitData(app, session.sessionId, i, i)
      const { stream, cut } = await session.listen()
      received.push(...dataOf(eventsOf(await stream.until(({ message }) => message?.params?.data?.i === i))).map(data => data.i))
      cut()
    }
    t.strictSame(received, offsets(1, 30))
  })

  t.test(`ten thousand missed events come back whole (${backend})`, async t => {
    const [a, b] = await startPair(t, backend, { retention: { maxEvents: 30_000, maxBytes: 64 * 1024 * 1024 } })
    const session = await initialize(a.url)
    const { sessionId } = session
    const listener = await session.listen()
    const primed = await listener.stream.next()
    const call = await session.call('slow', { ms: 500 })
    const opening = await call.stream.next()
    listener.cut()
    call.cut()
    await until(() => a.app.mcp.load.connections === 0, 'nobody is attached')

    const before = performance.now()
    await emitData(a.app, sessionId, 1, 10_000)
    const logged = performance.now()
    const { stream, cut, headers } = await session.at(b.url).resume(primed.id!)
    const events = eventsOf(await stream.until(({ message }) => message?.params.data.i === 10_000, 30_000))
    t.comment(`logged in ${Math.round(logged - before)} ms, resumed in ${Math.round(performance.now() - logged)} ms`)
    cut()
    t.match(headers['mcp-resume'], /^resumed;cause=replay;replay=10000;/)
    t.strictSame(dataOf(events).map(({ i }) => i), offsets(1, 10_000))
    t.strictSame(events.map(({ offset }) => offset), offsets(1, 10_000))

    // One event of a quiet stream, with thousands of foreign entries before it.
    const quiet = await session.at(b.url).resume(opening.id!)
    const result = eventsOf(await quiet.stream.rest())
    t.match(result, [{ offset: 1, message: { id: call.id, result: { content: [{ text: 'slept 500' }] } } }])
    t.equal(cursorOf(quiet.stream.frames), result[0]!.id)
  })
}
