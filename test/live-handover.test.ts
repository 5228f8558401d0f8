// History meets live: while a client resumes, the next events are on their way into the log.
import t from 'tap'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import type { FaultProxy } from './helpers/fault-proxy.ts'
import { backends, startPair, toolServer } from './helpers/plugin-app.ts'
import type { AppOptions, Backend, PluginApp } from './helpers/plugin-app.ts'
import { seededRandom } from './helpers/random.ts'
import { redisUrl } from './helpers/redis.ts'
import { initialize } from './helpers/sse-client.ts'
import type { Session } from './helpers/sse-client.ts'
import { dataOf, eventsOf, follow, offsets } from './helpers/stream-events.ts'
import type { StreamEvent } from './helpers/stream-events.ts'
import type { Owner } from './helpers/teardown.ts'

const random = seededRandom()
t.comment(`SEED=${random.seed}`)

/** Two replicas whose Redis is slow when asked; the in-process log has no latency to add. */
async function startSlowPair (t: Owner, backend: Backend, options: AppOptions): Promise<{ pair: [PluginApp, PluginApp], proxy: FaultProxy | undefined }> {
  if (backend === 'memory') return { pair: await startPair(t, backend, options), proxy: undefined }
  const proxy = await startFaultProxy(t, redisUrl())
  return { pair: await startPair(t, backend, { ...options, redisUrl: proxy.url }), proxy }
}

/** What the log itself has of a call's stream, from its opening on. */
async function readAll (session: Session, opening: StreamEvent): Promise<StreamEvent[]> {
  const answer = await session.resume(opening.id)
  return [opening, ...eventsOf(await answer.stream.rest(20_000))]
}

const isResult = ({ message }: StreamEvent): boolean => message?.result !== undefined || message?.error !== undefined

for (const backend of backends) {
  t.test(`B10: an append under way while a client resumes is delivered once (${backend})`, async t => {
    const { pair: [a, b], proxy } = await startSlowPair(t, backend, {})
    const session = await initialize(a.url)
    // Each resume takes some slow round trips, so the cuts fall before, into and after its read.
    proxy?.delay(100)
    const longest = proxy === undefined ? 60 : 250
    const { events, cuts, trouble } = await follow(await session.call('tick', { n: 50, ms: 20 }), {
      resume: (cursor, n) => session.at(n % 2 === 0 ? a.url : b.url).resume(cursor),
      cutAfterMs: n => n <= 10 ? random.between(0, longest) : 20_000,
      isLast: isResult
    })
    t.strictSame(trouble, [])
    t.strictSame(events.map(({ offset }) => offset), offsets(0, 51), `over ${cuts} connections`)
    t.strictSame(dataOf(events).map(({ progress }) => progress), offsets(1, 50))
    t.equal(new Set(events.map(({ id }) => id)).size, 52)
  })

  t.test(`B11: nothing is lost or doubled between history and live, whichever replica produces (${backend})`, async t => {
    const { pair: [a, b], proxy } = await startSlowPair(t, backend, { retention: { maxEvents: 100_000 } })
    const sessions = await Promise.all(Array.from({ length: 10 }, () => initialize(a.url)))
    proxy?.delay({ min: 0, max: 100, seed: random.seed })
    const runs = await Promise.all(sessions.map(async session => {
      const { sessionId } = session
      let sent = 0
      let last = Infinity
      const emit = (): void => {
        a.app.mcp.notify(sessionId, { method: 'notifications/message', params: { level: 'info', data: ++sent } })
      }
      const timer = setInterval(emit, 5)
      const { events, trouble } = await follow(await session.listen(), {
        resume: cursor => session.at(b.url).resume(cursor),
        cutAfterMs: n => {
          if (n <= 20) return random.between(0, 80)
          clearInterval(timer)
          emit()
          last = sent
          return 10_000
        },
        isLast: event => dataOf([event])[0] === last
      })
      return { events, trouble, last }
    }))
    for (const { events, trouble, last } of runs) {
      t.strictSame(trouble, [])
      t.strictSame(events.map(({ offset }) => offset), offsets(1, last))
      t.strictSame(dataOf(events), offsets(1, last))
    }
  })

  t.test(`B33: handlers that do not await keep their order, and the result is last (${backend})`, async t => {
    const { pair: [a, b], proxy } = await startSlowPair(t, backend, {
      server: toolServer(async ({ emit, announce }) => {
        for (let i = 1; i <= 200; i++) {
          emit(i)
          announce(i)
          // Not awaited; some in one tick, some in turns of the event loop.
          if (i % 7 === 0) await new Promise(resolve => setImmediate(resolve))
        }
        return 'result'
      })
    })
    const session = await initialize(a.url)
    const listener = await session.at(b.url).listen()
    proxy?.delay({ min: 0, max: 200, seed: random.seed })
    const call = await session.call('any')
    await call.response(20_000)
    const events = eventsOf(call.stream.frames)
    t.strictSame(dataOf(events), offsets(1, 200))
    t.strictSame(events.map(({ offset }) => offset), offsets(0, 201))
    t.ok(isResult(events.at(-1)!))
    t.strictSame(await readAll(session.at(b.url), events[0]!), events, 'the log agrees')
    const announced = eventsOf(await listener.stream.until(({ message }) => message?.params.data === 200, 20_000))
    t.strictSame(dataOf(announced), offsets(1, 200))
  })
}
