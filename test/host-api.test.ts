// `app.mcp`: from any replica, once per session, only to sessions that it concerns, and also to those who are away.
import t from 'tap'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { startCluster, type Host } from './helpers/hosts.ts'
import { redisUrl } from './helpers/redis.ts'
import { initialize, type Session } from './helpers/sse-client.ts'
import { connectStock } from './helpers/stock-clients.ts'
import { eventsOf } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

const cluster = await startCluster(t, 2)
const [a, b] = cluster.hosts as [Host, Host]
const proxy = await startFaultProxy(t, redisUrl())
/** Its servers declare no lists that change, and its Redis connection may break. */
const c = await cluster.add({ redisUrl: proxy.url, capabilities: { logging: {}, tools: { listChanged: false } } })
const hosts = [a, b, c]

function say (data: unknown): object {
  return { method: 'notifications/message', params: { level: 'info', data } }
}

/** What the session's standalone stream carries, read by a GET on `host` up to `last`. */
async function received (session: Session, host: Host, last: (message: any) => boolean): Promise<any[]> {
  const answer = await session.at(host.url).listen()
  const frames = await answer.stream.until(({ message }) => message !== undefined && last(message))
  answer.cut()
  return eventsOf(frames).flatMap(({ message }) => message ?? [])
}

t.test('notify: to a listener on another replica, and to one who is away, once each', async t => {
  const session = await initialize(a.url)
  const listener = await session.at(a.url).listen()
  for (const host of hosts) await host.mcp('notify', session.sessionId, say(`from ${host.id}`))
  await listener.stream.until(({ message }) => message?.params?.data === `from ${c.id}`)
  t.strictSame(eventsOf(listener.stream.frames).flatMap(({ message }) => message?.params?.data ?? []), hosts.map(({ id }) => `from ${id}`))
  listener.cut()
  await until(async () => !(await a.mcp('session', session.sessionId)).listening, 'the cut is noticed')

  for (const host of hosts) await host.mcp('notify', session.sessionId, say(`away, from ${host.id}`))
  t.match(await b.mcp('session', session.sessionId), { undelivered: 3, initialized: true, clientInfo: { name: 'raw' } })
  const messages = await received(session, b, ({ params }) => params.data === `away, from ${c.id}`)
  t.strictSame(messages.map(({ params }) => params.data), hosts.map(({ id }) => `away, from ${id}`))
})

t.test('broadcast: every session once, from any replica, whoever listens where', async t => {
  const { keyPrefix } = cluster
  const sessions = await Promise.all(Array.from({ length: 12 }, (_, i) => initialize(hosts[i % 3]!.url)))
  const early = await initialize(a.url, { initialized: false })
  const listeners = await Promise.all(sessions.slice(0, 6).map((session, i) => session.at(hosts[(i + 1) % 3]!.url).listen()))
  const rounds = [1, 2, 3, 4]
  const counts = await Promise.all(hosts.map(async host => {
    const sent: number[] = []
    for (const round of rounds) sent.push(await host.mcp('broadcast', say(`${host.id} ${round}`)))
    return sent
  }))
  const initialized = Number(await cluster.redis.zcard(`${keyPrefix}sessions`)) - 1
  t.strictSame(counts, hosts.map(() => rounds.map(() => initialized)), 'it says for how many it was logged')

  await a.mcp('broadcast', say('the last'))
  const all = await Promise.all(sessions.map(async (session, i) => {
    const listener = listeners[i]
    if (listener === undefined) return await received(session, hosts[(i + 2) % 3]!, ({ params }) => params.data === 'the last')
    await listener.stream.until(({ message }) => message?.params?.data === 'the last')
    listener.cut()
    return eventsOf(listener.stream.frames).flatMap(({ message }) => message ?? [])
  }))
  for (const messages of all) {
    const data: string[] = messages.map(({ params }: any) => params.data)
    t.equal(data.length, hosts.length * rounds.length + 1)
    for (const { id } of hosts) {
      t.strictSame(data.filter(text => text.startsWith(id)), rounds.map(round => `${id} ${round}`), 'once, in the order of its sender')
    }
  }
  t.equal((await b.mcp('session', early.sessionId)).undelivered, 0, 'a session that is not initialized is not concerned')
})

t.test('changes of lists and resources reach the sessions that they concern', async t => {
  const declared = await initialize(a.url)
  const other = await initialize(b.url)
  const plain = await initialize(c.url)
  await (await declared.at(b.url).request('resources/subscribe', { uri: 'note://mine' })).response()
  await (await other.request('resources/subscribe', { uri: 'note://other' })).response()
  await (await other.at(a.url).request('resources/subscribe', { uri: 'note://mine' })).response()
  await (await other.at(b.url).request('resources/unsubscribe', { uri: 'note://mine' })).response()

  await c.mcp('toolsChanged')
  await a.mcp('promptsChanged')
  await b.mcp('resourcesChanged')
  t.equal(await c.mcp('resourceUpdated', 'note://mine'), 1, 'only who is subscribed now')
  t.equal(await a.mcp('resourceUpdated', 'note://nobody'), 0)
  for (const session of [declared, other, plain]) await a.mcp('notify', session.sessionId, say('the last'))

  const methods = async (session: Session, host: Host): Promise<string[]> => {
    const messages = await received(session, host, ({ params }) => params?.data === 'the last')
    return messages.slice(0, -1).map(({ method, params }) => `${method.slice('notifications/'.length)}${params?.uri === undefined ? '' : ` ${params.uri}`}`)
  }
  const lists = ['tools/list_changed', 'prompts/list_changed', 'resources/list_changed']
  t.strictSame(await methods(declared, c), [...lists, 'resources/updated note://mine'])
  t.strictSame(await methods(other, a), lists)
  t.strictSame(await methods(plain, b), [], 'its server declared none of them')
})

t.test('stock clients on other replicas get them through their own handlers', async t => {
  const stocks = await Promise.all(([1, 2] as const).map(version => connectStock(t, version, cluster.url)))
  await until(async () => (await Promise.all(stocks.map(({ sessionId }) => a.mcp('session', sessionId)))).every(({ listening }) => listening), 'both listen')
  await c.mcp('toolsChanged')
  await c.mcp('resourcesChanged')
  for (const { notifications } of stocks) {
    await until(() => notifications.length === 2, 'both notifications')
    t.strictSame(notifications.map(({ method }) => method), ['notifications/tools/list_changed', 'notifications/resources/list_changed'])
  }
})

t.test('once, although the reply of Redis was lost or its connection broke on the way', async t => {
  const sessions = await Promise.all([1, 2, 3, 4, 5, 6].map(() => initialize(a.url)))
  proxy.loseReplyTo(({ name, args }) => name === 'EVALSHA' && args.some(arg => arg.includes('reply lost')), 3)
  const sent = await c.mcp('broadcast', say('reply lost'))
  t.ok(sent >= sessions.length)

  // More than it serves at once, so that it is not done when the connection breaks.
  await Promise.all(Array.from({ length: 80 }, () => initialize(a.url)))
  const before = proxy.count('HMGET')
  proxy.delay(200)
  const broken = c.mcp('broadcast', say('connection broken'))
  await until(() => proxy.count('HMGET') - before > 30, 'the broadcast is under way')
  proxy.refuse()
  proxy.reset()
  const since = performance.now()
  await until(() => performance.now() - since > 3000, 'Redis is away for longer than a command may take')
  proxy.restore()
  t.equal(await broken, sent + 80, 'a broadcast waits for a Redis that is away')
  for (const session of sessions) {
    await a.mcp('notify', session.sessionId, say('the last'))
    const messages = await received(session, b, ({ params }) => params?.data === 'the last')
    t.strictSame(messages.map(({ params }) => params.data), ['reply lost', 'connection broken', 'the last'])
  }
})

t.test('what it is asked wrongly it says', async t => {
  const session = await initialize(a.url)
  t.ok((await b.mcp('sessions')).includes(session.sessionId))
  t.equal(await b.mcp('terminate', session.sessionId), true)
  t.equal(await b.mcp('terminate', session.sessionId), false)
  await t.rejects(c.mcp('notify', session.sessionId, say('too late')), /not found/)
  await t.rejects(c.mcp('notify', 'A'.repeat(32), say('nobody')), /not found/)
  t.equal(await a.mcp('session', session.sessionId), undefined)
  await t.rejects(a.mcp('broadcast', { method: 7 }), /Not a notification/)
  await t.rejects(a.mcp('broadcast', { method: 'notifications/x', params: [] }), /Not a notification/)
  t.strictSame((await Promise.all(hosts.map(host => host.stats()))).flatMap(({ uncaught }) => uncaught), [])
})
