// A stream has one connection and a call one runner. Who has lost either cannot go on as if he had not.
import t from 'tap'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { startCluster, type Host } from './helpers/hosts.ts'
import { redisUrl } from './helpers/redis.ts'
import { initialize, type Answer } from './helpers/sse-client.ts'
import { cursorOf, eventsOf } from './helpers/stream-events.ts'
import { until, within } from './helpers/wait.ts'

const plugin = { keepAliveMs: 1500, retention: { windowMs: 60_000 } }
const cluster = await startCluster(t, 2, { plugin })
const [a, b] = cluster.hosts as [Host, Host]
const proxy = await startFaultProxy(t, redisUrl())
/** Its subscription can be silenced. */
const deaf = await cluster.add({ redisUrl: proxy.url })

function say (data: unknown): object {
  return { method: 'notifications/message', params: { level: 'info', data } }
}

function data ({ stream }: Answer): unknown[] {
  return eventsOf(stream.frames).flatMap(({ message }) => message?.params?.data ?? [])
}

t.test('a connection that lost its stream writes nothing more to it, although its replica did not hear of it', async t => {
  const session = await initialize(a.url)
  const older = await session.at(deaf.url).listen()
  await deaf.mcp('notify', session.sessionId, say('before'))
  const frames = await older.stream.until(({ message }) => message?.params?.data === 'before')
  proxy.stall(({ isSubscriber }) => isSubscriber)

  const newer = await session.at(b.url).resume(cursorOf(frames)!)
  // From its own replica, which would hand it straight to the connection it has.
  await deaf.mcp('notify', session.sessionId, say('by the deaf replica'))
  await a.mcp('notify', session.sessionId, say('by another one'))
  await newer.stream.until(({ message }) => message?.params?.data === 'by another one')
  t.strictSame(data(newer), ['by the deaf replica', 'by another one'])
  t.equal(await within(older.stream.ended, 'the end of the stream'), 'end', 'its next tick tells that it has lost the stream')
  t.strictSame(data(older), ['before'])
  t.ok(newer.stream.isOpen)
  newer.cut()
  proxy.restore()
})

t.test('two resumes at one moment end with one live copy', async t => {
  for (const [where, first, second] of [['on two replicas', a, b], ['on one replica', a, a]] as const) {
    for (let round = 0; round < 10; round++) {
      const session = await initialize(a.url)
      const start = await session.at(b.url).listen()
      await b.mcp('notify', session.sessionId, say(0))
      const cursor = cursorOf(await start.stream.until(({ message }) => message !== undefined))!
      start.cut()
      const emitting = Promise.all([1, 2, 3].map(n => a.mcp('notify', session.sessionId, say(n))))
      const answers = await Promise.all([first, second].map(({ url }) => session.at(url).resume(cursor)))
      await emitting
      await until(() => answers.some(({ stream }) => !stream.isOpen), 'one of them has lost it')
      await b.mcp('notify', session.sessionId, say('live'))
      const live = answers.filter(({ stream }) => stream.isOpen)
      t.equal(live.length, 1, where)
      await live[0]!.stream.until(({ message }) => message?.params?.data === 'live')
      t.strictSame(data(live[0]!), [1, 2, 3, 'live'], 'which gets everything')
      const lost = answers.find(answer => answer !== live[0])!
      t.strictSame(data(lost), [1, 2, 3].slice(0, data(lost).length), 'the other one had the start of it, at most')
      live[0]!.cut()
    }
  }
})

t.test('a replica whose subscription is dead hears again, and nothing is lost meanwhile', async t => {
  const session = await initialize(a.url)
  const call = await session.at(deaf.url).call('work', { key: 'unheard', ms: 60_000 })
  const listener = await session.at(deaf.url).listen()
  await listener.stream.next()
  const [dead] = proxy.connections.filter(({ isSubscriber }) => isSubscriber)
  proxy.stall(({ number }) => number === dead!.number)
  const at = performance.now()
  await b.mcp('notify', session.sessionId, say('behind its back'))
  await listener.stream.until(({ message }) => message?.params?.data === 'behind its back')
  t.comment(`a tick brought it after ${Math.round(performance.now() - at)} ms`)
  t.match(await (await session.at(deaf.url).call('echo', { text: 'still serving' })).response(), { result: { content: [{ text: 'still serving' }] } })

  await until(() => proxy.connections.some(({ number, isSubscriber }) => isSubscriber && number > dead!.number), 'it subscribes anew', 20_000)
  t.comment(`subscribed anew after ${Math.round(performance.now() - at)} ms`)
  t.ok(call.stream.isOpen, 'its calls run on')
  await session.at(b.url).notify('notifications/cancelled', { requestId: call.id })
  t.equal(await within(call.stream.ended, 'the end of the stream'), 'end')
  listener.cut()
  proxy.restore()
})

t.test('a call that was settled while its replica stood still is aborted, although its handler says nothing', async t => {
  const session = await initialize(a.url)
  const call = await session.at(deaf.url).call('work', { key: 'asleep', ms: 120_000 })
  const opening = await call.stream.next()
  deaf.freeze()
  call.cut()
  const resumed = await session.at(b.url).resume(opening.id!)
  const rest = await resumed.stream.rest(40_000)
  t.match(rest.at(-1)!.message, { id: call.id, result: { isError: true } })
  deaf.thaw()
  await until(async () => (await deaf.happenings()).some(({ key, what }) => key === 'asleep' && what === 'aborted'), 'its signal is aborted', 20_000)
  const again = await session.at(a.url).resume(opening.id!)
  t.strictSame(eventsOf(await again.stream.rest()).map(({ id }) => id), eventsOf(rest).map(({ id }) => id), 'settled once')
  t.strictSame((await Promise.all([a, b, deaf].map(host => host.stats()))).flatMap(({ uncaught }) => uncaught), [])
})
