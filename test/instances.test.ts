// The SDK servers that stand for a session: made where they are needed, told what happens elsewhere.
import t from 'tap'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { startCluster, type Host } from './helpers/hosts.ts'
import { redisUrl } from './helpers/redis.ts'
import { initialize, type Session } from './helpers/sse-client.ts'
import { until } from './helpers/wait.ts'

const cluster = await startCluster(t, 2, { factoryMs: 200 })
const [a, b] = cluster.hosts as [Host, Host]

async function text (session: Session, name: string, args: object): Promise<string> {
  return (await (await session.call(name, args as Record<string, unknown>)).response()).result.content[0].text
}

t.test('concurrent first requests share one instance', async t => {
  const session = await initialize(a.url)
  const before = await b.stats()
  const there = session.at(b.url)
  const answers = await Promise.all(Array.from({ length: 20 }, (_, i) => text(there, 'echo', { text: `request ${i}` })))
  t.strictSame(answers, Array.from({ length: 20 }, (_, i) => `request ${i}`))
  t.equal((await b.stats()).made - before.made, 1)
})

t.test('a factory that fails leaks nothing, and the next request tries again', async t => {
  const session = await initialize(a.url)
  const there = session.at(b.url)
  const before = await b.stats()
  await b.failFactory(1)
  const failed = await Promise.all([1, 2, 3].map(() => there.call('echo', { text: 'no' })))
  for (const call of failed) {
    t.equal(call.status, 200)
    t.match(await call.response(), { id: call.id, error: { code: -32603 } })
  }
  t.equal((await b.stats()).servers, before.servers)
  t.equal(await text(there, 'echo', { text: 'yes' }), 'yes')

  // A new session: nothing of it is in Redis when its server could not be made.
  const sessions = await cluster.redis.keys(`${cluster.keyPrefix}{*`)
  await b.failFactory(1)
  await t.rejects(initialize(b.url), /-32603/)
  t.strictSame((await cluster.redis.keys(`${cluster.keyPrefix}{*`)).sort(), sessions.sort())
  t.equal((await b.stats()).servers, before.servers + 1)
  await t.resolves(initialize(b.url))
})

t.test('a Redis that fails midway leaks nothing, and the next request tries again', async t => {
  const proxy = await startFaultProxy(t, redisUrl())
  const c = await cluster.add({ redisUrl: proxy.url, factoryMs: 2000, plugin: { patienceMs: 500, commandTimeoutMs: 500 } })
  const session = (await initialize(a.url)).at(c.url)

  // Away while the instance is being made, so before the request's stream is open.
  const call = session.call('work', { key: 'midway', ms: 0 })
  await until(async () => (await c.stats()).made === 1, 'the factory runs')
  proxy.stall()
  t.match(await (await call).response(), { error: { code: -31004 } })
  proxy.restore()
  t.strictSame(await c.happenings(), [], 'a handler does not start before its stream is in the log')
  t.equal(await text(session, 'work', { key: 'again', ms: 0 }), 'worked on again')
  t.equal((await c.stats()).made, 1, 'on the same instance')

  // Away while a session is being opened.
  const { servers } = await c.stats()
  const opening = initialize(c.url)
  await until(async () => (await c.stats()).made === 2, 'the factory runs')
  proxy.stall()
  await t.rejects(opening, /-31004/)
  proxy.restore()
  t.equal((await c.stats()).servers, servers)
  await t.resolves(initialize(c.url))
  t.strictSame((await c.stats()).uncaught, [])
})

t.test('log level and subscriptions reach live instances elsewhere', async t => {
  const proxy = await startFaultProxy(t, redisUrl())
  const c = await cluster.add({ redisUrl: proxy.url })
  const session = await initialize(a.url)
  await text(session.at(b.url), 'echo', { text: 'live here' })
  await text(session.at(c.url), 'echo', { text: 'and here' })

  await (await session.at(a.url).request('resources/subscribe', { uri: 'note://one' })).response()
  await until(async () => (await b.happenings()).some(({ key, what }) => key === 'note://one' && what === 'subscribe'), 'the server on B is subscribed')
  await (await session.at(b.url).request('resources/unsubscribe', { uri: 'note://one' })).response()
  await until(async () => (await a.happenings()).some(({ key, what }) => key === 'note://one' && what === 'unsubscribe'), 'the server on A is unsubscribed')

  // C hears nothing more: what was set elsewhere still holds for the next request it serves.
  proxy.stall(connection => connection.isSubscriber)
  await (await session.at(a.url).request('logging/setLevel', { level: 'error' })).response()
  await (await session.at(a.url).request('resources/subscribe', { uri: 'note://two' })).response()
  const listener = await session.at(b.url).listen()
  for (const { url } of [a, b, c]) {
    await text(session.at(url), 'say', { level: 'info', data: 'below the level' })
    await text(session.at(url), 'say', { level: 'error', data: `last of ${url}` })
    await listener.stream.until(({ message }) => message?.params?.data === `last of ${url}`)
  }
  t.notOk(listener.stream.frames.some(({ message }) => message?.params?.data === 'below the level'))
  t.strictSame((await c.happenings()).filter(({ key }) => key === 'note://two').map(({ what }) => what), ['subscribe'])
})
