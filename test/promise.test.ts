// The promise of a stream read over many connections: in order, nothing twice, nothing missing (DESIGN.md section 13).
import { request } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { emitData } from './helpers/emit.ts'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { backends, startPair } from './helpers/plugin-app.ts'
import { seededRandom } from './helpers/random.ts'
import { keyPrefix, redisUrl } from './helpers/redis.ts'
import { startReplica } from './helpers/replica.ts'
import { initialize } from './helpers/sse-client.ts'
import type { Answer, Call, Session } from './helpers/sse-client.ts'
import { cursorOf, dataOf, eventsOf, follow, offsets } from './helpers/stream-events.ts'
import type { StreamEvent } from './helpers/stream-events.ts'

const random = seededRandom()
t.comment(`SEED=${random.seed}`)

/** What the log itself has of a call's stream, from its opening on. */
async function readAll (session: Session, opening: StreamEvent): Promise<StreamEvent[]> {
  const answer = await session.resume(opening.id)
  return [opening, ...eventsOf(await answer.stream.rest(20_000))]
}

/** Sends a resume and destroys its socket after `ms`, whatever has come by then. */
function giveUp ({ url, headers }: Session, cursor: string, ms: number): void {
  const outgoing = request(url, { headers: { ...headers, accept: 'text/event-stream', 'last-event-id': cursor }, agent: false }).end()
  outgoing.on('error', () => {})
  setTimeout(() => outgoing.destroy(), ms)
}

const isResult = ({ message }: StreamEvent): boolean => message?.result !== undefined || message?.error !== undefined

for (const backend of backends) {
  t.test(`the promise holds at random cuts on alternating replicas while several tools emit (${backend})`, async t => {
    // A muted connection learns at a tick that its successor is gone.
    const environment = { MAX_EVENTS: 100_000, KEEP_ALIVE_MS: 300, ...(backend === 'redis' && { REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t) }) }
    const first = await startReplica(t, environment)
    const replicas = backend === 'redis' ? [first, await startReplica(t, environment)] : [first]
    const session = await initialize(first.url)
    const at = (n: number): Session => session.at(replicas[n % replicas.length]!.url)
    // Now and then the client gives up on an answer and asks again at once, elsewhere.
    const resume = (cursor: string, n: number): Promise<Answer> => {
      if (random.between(0, 1) < 0.3) giveUp(at(n + 1), cursor, random.between(0, 4))
      return at(n).resume(cursor)
    }

    const followCall = async (i: number, args: { n: number, ms: number, bytes?: number }): Promise<{ call: Call, events: StreamEvent[] }> => {
      const call = await at(i).call('tick', args)
      const { events, cuts, trouble } = await follow(call, {
        resume: (cursor, n) => resume(cursor, i + n),
        cutAfterMs: () => random.between(0, 120),
        isLast: isResult
      })
      const about = `call ${i} over ${cuts} connections`
      t.strictSame(trouble, [], about)
      t.strictSame(events.map(({ offset }) => offset), offsets(0, args.n + 1), about)
      t.strictSame(dataOf(events).map(({ progress }) => progress), offsets(1, args.n), about)
      t.equal(events.at(-1)!.message.id, call.id)
      t.strictSame(await readAll(at(i + 1), events[0]!), events, `${about}: exactly the log`)
      return { call, events }
    }
    const listen = async (): Promise<StreamEvent[]> => {
      const listener = await at(1).listen()
      await (await at(0).call('emit', { n: 200, ms: 10 })).response()
      const { events, trouble } = await follow(listener, {
        resume,
        cutAfterMs: () => random.between(0, 120),
        isLast: event => dataOf([event])[0]?.i === 200
      })
      t.strictSame(trouble, [])
      t.strictSame(dataOf(events).map(({ i }) => i), offsets(1, 200))
      t.strictSame(events.map(({ offset }) => offset), offsets(1, 200))
      return events
    }
    const [announced, ...calls] = await Promise.all([
      listen(),
      followCall(0, { n: 200, ms: 10 }),
      followCall(1, { n: 200, ms: 10 }),
      followCall(2, { n: 600, ms: 1 }),
      // Above the size that a hint carries.
      followCall(3, { n: 100, ms: 20, bytes: 20_000 })
    ])
    const numbers = [...announced, ...calls.flatMap(({ events }) => events)].map(({ seq }) => seq)
    t.equal(new Set(numbers).size, numbers.length, 'one number, one event, over all streams')
    t.ok(replicas.every(({ stderr }) => !stderr.some(line => /"level":(50|60)/.test(line))), 'no replica logged an error')
  })

  t.test(`connections that are left behind open take nothing from the newest one (${backend})`, async t => {
    const [a, b] = await startPair(t, backend)
    const session = await initialize(a.url)
    const end = new AbortController()
    let sent = 0
    const producer = (async () => {
      for (; !end.signal.aborted; await sleep(5)) {
        sent++
        await emitData([a, b][sent % 2]!.app, session.sessionId, sent, sent)
      }
    })()

    const events: StreamEvent[] = []
    const left: Answer[] = []
    let answer = await session.listen()
    for (let n = 0; n < 40; n++) {
      await sleep(random.between(0, 60))
      // What arrives later on this connection is not read any more, and the server is not told.
      const frames = [...answer.stream.frames]
      events.push(...eventsOf(frames))
      left.push(answer)
      answer = await session.at([a, b][random.below(2)]!.url).resume(cursorOf(frames)!)
      t.match(answer.headers['mcp-resume'], /^resumed;/)
    }
    end.abort()
    await producer
    // The last of the old connections has gone by now; its end must not cut off the newest.
    await emitData(a.app, session.sessionId, ++sent, sent)
    while (events.at(-1)?.offset !== sent) events.push(...eventsOf([await answer.stream.next()]))
    t.strictSame(events.map(({ offset }) => offset), offsets(1, sent))
    t.strictSame(dataOf(events).map(({ i }) => i), offsets(1, sent))
    for (const { cut } of [...left, answer]) cut()
  })

  for (const protocolVersion of ['2025-03-26', '2025-06-18']) {
    t.test(`clients that cannot read empty data have the same promise (${backend}, ${protocolVersion})`, async t => {
      const [a, b] = await startPair(t, backend)
      const session = await initialize(a.url, { protocolVersion })
      const listener = await session.listen()
      const call = await session.call('tick', { n: 60, ms: 5 })
      await (await session.call('emit', { n: 60, ms: 5 })).response()
      // Without an opening frame there is no cursor before the first event.
      await Promise.all([call, listener].map(({ stream }) => stream.next()))
      const options = {
        resume: (cursor: string, n: number) => session.at([a, b][n % 2]!.url).resume(cursor),
        cutAfterMs: () => random.between(0, 60)
      }
      const [called, listened] = await Promise.all([
        follow(call, { ...options, isLast: isResult }),
        follow(listener, { ...options, isLast: event => dataOf([event])[0]?.i === 60 })
      ])
      t.strictSame([called.trouble, listened.trouble], [[], []])
      t.strictSame(called.events.map(({ offset }) => offset), offsets(1, 61), 'the opening is not shown')
      t.strictSame(listened.events.map(({ offset }) => offset), offsets(1, 60))
    })
  }
}

t.test('the promise holds while the connections to Redis break', async t => {
  const proxy = await startFaultProxy(t, redisUrl())
  // Ticks heal what a broken subscription did not bring.
  const [a, b] = await startPair(t, 'redis', { redisUrl: proxy.url, keepAliveMs: 500 })
  const session = await initialize(a.url)
  const at = (n: number): Session => session.at([a, b][n % 2]!.url)
  const listener = await session.listen()
  const calls = await Promise.all([0, 1, 2].map(i => at(i).call('tick', { n: 80, ms: 15 })))
  await (await session.call('emit', { n: 80, ms: 15 })).response()

  const end = new AbortController()
  const faults = (async () => {
    while (!end.signal.aborted) {
      await sleep(random.between(50, 300))
      switch (random.below(4)) {
        case 0: proxy.reset(); break
        case 1: proxy.reset(({ isSubscriber }) => isSubscriber); break
        case 2: proxy.loseReplyTo(({ name }) => name.startsWith('EVAL')); break
        case 3:
          proxy.stall()
          await sleep(random.between(20, 300))
          proxy.restore()
      }
    }
    proxy.restore()
  })()
  const options = { resume: (cursor: string, n: number) => at(n).resume(cursor), cutAfterMs: () => random.between(0, 150) }
  const [listened, ...called] = await Promise.all([
    follow(listener, { ...options, isLast: event => dataOf([event])[0]?.i === 80 }),
    ...calls.map(call => follow(call, { ...options, isLast: isResult }))
  ])
  end.abort()
  await faults
  for (const { trouble } of [listened, ...called]) t.ok(trouble.every(what => what === 'away'), 'away is the only excuse')
  t.strictSame(listened.events.map(({ offset }) => offset), offsets(1, 80))
  t.strictSame(dataOf(listened.events).map(({ i }) => i), offsets(1, 80))
  for (const { events } of called) {
    t.strictSame(events.map(({ offset }) => offset), offsets(0, 81))
    t.match(events.at(-1)!.message, { result: { content: [{ text: 'ticked 80' }] } })
  }
})
