// Each message goes to one stream of one session, live and replayed.
import t from 'tap'
import { emitData } from './helpers/emit.ts'
import { backends, startPair } from './helpers/plugin-app.ts'
import type { PluginApp } from './helpers/plugin-app.ts'
import { seededRandom } from './helpers/random.ts'
import { initialize } from './helpers/sse-client.ts'
import type { Answer, Session } from './helpers/sse-client.ts'
import { dataOf, eventsOf, follow, offsets } from './helpers/stream-events.ts'
import type { StreamEvent } from './helpers/stream-events.ts'

const random = seededRandom()
t.comment(`SEED=${random.seed}`)

const isResult = ({ message }: StreamEvent): boolean => message?.result !== undefined || message?.error !== undefined

/** Everything on the standalone stream so far: what comes before an event that is sent now. */
async function soFar ({ app }: PluginApp, { sessionId }: Session, { stream }: Answer): Promise<any[]> {
  await emitData(app, sessionId, 0, 0)
  const frames = await stream.until(({ message }) => message?.params?.data?.i === 0)
  return dataOf(eventsOf(frames.slice(0, -1)))
}

for (const backend of backends) {
  t.test(`B15: a replay brings the events of its own stream only (${backend})`, async t => {
    const [a, b] = await startPair(t, backend)
    const session = await initialize(a.url)
    const listener = await session.listen()
    const [first, second] = await Promise.all([
      session.call('tick', { n: 20, ms: 20 }, { progressToken: 'first' }),
      session.call('tick', { n: 20, ms: 20 }, { progressToken: 'second' })
    ])
    await (await session.call('emit', { n: 20, ms: 20 })).response()
    const begun = eventsOf(await first.stream.until(({ message }) => message?.params.progress === 5))
    first.cut()
    const [other] = eventsOf(await second.stream.until(({ message }) => message?.params.progress === 5))

    const resumed = await session.at(b.url).resume(begun.at(-1)!.id)
    const events = eventsOf(await resumed.stream.rest())
    t.strictSame(events.map(({ offset }) => offset), offsets(6, 21))
    t.ok(events.every(({ stream }) => stream === begun[0]!.stream), 'the ID says which stream it is of')
    t.strictSame(events.slice(0, -1).map(({ message }) => message.params.progressToken), Array(15).fill('first'))
    t.equal(events.at(-1)!.message.id, first.id)
    await second.response()
    await listener.stream.until(({ message }) => message?.params.data.i === 20)

    const whole = await session.at(b.url).resume(other!.id)
    t.strictSame(eventsOf(await whole.stream.rest()).map(({ message }) => message.params?.progressToken ?? message.id), [...Array(20).fill('second'), second.id])
    t.strictSame(dataOf(eventsOf(listener.stream.frames)).map(({ i }) => i), offsets(1, 20))
    const unknown = await session.at(b.url).resume(other!.id.replace(other!.stream, 'aaaaaaaa'))
    t.equal(unknown.status, 204, 'no such stream: nothing, and not the history of all')
    const guessed = await session.at(b.url).resume(other!.id.replace(other!.stream, '1'))
    t.match(guessed.headers['mcp-resume'], /^gap;cause=diverged/, 'a number of another stream is no place on this one')
    guessed.cut()
  })

  t.test(`B16: two sessions with the same names for everything stay apart (${backend})`, async t => {
    const [a, b] = await startPair(t, backend)
    const sessions = [await initialize(a.url), await initialize(a.url)] as const
    const [one, two] = sessions
    const listeners = await Promise.all(sessions.map(session => session.listen()))
    const calls = await Promise.all(sessions.map(async (session, i) => {
      const call = await session.call('tick', { n: 3, ms: 5 }, { id: 1, progressToken: i === 0 ? 'one' : 'two' })
      const [opening] = eventsOf([await call.stream.next()])
      call.cut()
      return opening!
    }))
    const primed = await listeners[0]!.stream.next()
    listeners[0]!.cut()
    await emitData(a.app, two.sessionId, 1, 5, { who: 'two' })

    const resumed = await one.at(b.url).resume(primed.id!)
    t.strictSame(await soFar(a, one, resumed), [])
    t.strictSame(dataOf(eventsOf(await listeners[1]!.stream.until(({ message }) => message?.params.data.i === 5))).map(({ who }) => who), Array(5).fill('two'))
    for (const [i, opening] of calls.entries()) {
      const answer = await sessions[i]!.at(b.url).resume(opening.id)
      const events = eventsOf(await answer.stream.rest())
      t.strictSame(events.slice(0, -1).map(({ message }) => message.params.progressToken), Array(3).fill(i === 0 ? 'one' : 'two'))
      t.match(events.at(-1)!.message, { id: 1, result: { content: [{ text: 'ticked 3' }] } })
    }
    for (const [i, opening] of calls.entries()) {
      const answer = await sessions[1 - i]!.at(b.url).resume(opening.id)
      t.equal(answer.status, 204, 'an ID of the other session names no stream of this one')
    }
  })

  t.test(`B30: each notification appears once, on the stream of its request (${backend})`, async t => {
    const [a, b] = await startPair(t, backend)
    const sessions = [await initialize(a.url), await initialize(a.url)]
    const runs = await Promise.all(sessions.map(async (session, s) => {
      const listener = await session.at(b.url).listen()
      const tokens = offsets(1, 3).map(i => `${s}-${i}`)
      const calls = await Promise.all(tokens.map((progressToken, i) => session.at([a.url, b.url][i % 2]!).call('tick', { n: 20, ms: 5 }, { progressToken, id: i + 1 })))
      await Promise.all(calls.map(call => call.response()))
      return { session, listener, tokens, calls }
    }))
    for (const { session, listener, tokens, calls } of runs) {
      for (const [i, call] of calls.entries()) {
        const events = eventsOf(call.stream.frames)
        t.strictSame(events.slice(1, -1).map(({ message }) => [message.params.progressToken, message.params.progress]), offsets(1, 20).map(n => [tokens[i], n]))
        t.equal(events.at(-1)!.message.id, call.id)
        t.equal(new Set(events.map(({ stream }) => stream)).size, 1)
      }
      t.strictSame(await soFar(a, session, listener), [])
      t.ok(listener.stream.frames.every(({ message }) => message?.method !== 'notifications/progress'))
    }
    const streams = runs.flatMap(({ calls }) => calls.map(call => eventsOf(call.stream.frames)[0]!.stream))
    t.equal(new Set(streams).size, 6)
  })

  t.test(`many sessions at once, all cut and resumed (${backend})`, async t => {
    const [a, b] = await startPair(t, backend)
    const urls = [a.url, b.url]
    const run = async (who: string): Promise<string[]> => {
      const session = await initialize(urls[random.below(2)]!)
      const anywhere = (): Session => session.at(urls[random.below(2)]!)
      const options = {
        resume: (cursor: string) => anywhere().resume(cursor),
        cutAfterMs: (n: number) => n > 8 ? 20_000 : random.between(0, 60)
      }
      const listener = follow(await anywhere().listen(), { ...options, isLast: event => dataOf([event])[0]?.i === 50 })
      const call = await anywhere().call('tick', { n: 20, ms: 5 }, { id: 1, progressToken: who })
      const [ticked, listened, echo] = await Promise.all([
        follow(call, { ...options, isLast: isResult }),
        listener,
        anywhere().call('echo', { text: who }, { id: 2 }).then(call => call.response()),
        emitData([a, b][random.below(2)]!.app, session.sessionId, 1, 50, { who })
      ])
      const wrong: string[] = [...ticked.trouble, ...listened.trouble]
      const expect = (holds: boolean, what: string): void => { if (!holds) wrong.push(`${who}: ${what}`) }
      expect(echo.result.content[0].text === who, 'echo')
      expect(ticked.events.slice(1, -1).every(({ message }) => message.params.progressToken === who), 'progress')
      expect(ticked.events.map(({ offset }) => offset).join() === offsets(0, 21).join(), 'the call whole')
      expect(listened.events.every(({ message }) => message.params.data.who === who), 'messages')
      expect(dataOf(listened.events).map(({ i }) => i).join() === offsets(1, 50).join(), 'the messages whole')
      return wrong
    }
    t.strictSame((await Promise.all(offsets(1, 30).map(i => run(`client ${i}`)))).flat(), [])
  })
}
