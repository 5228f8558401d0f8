// Strict round robin over three processes on one Redis: no request of a session goes where the one before it went.
import t from 'tap'
import { startBalancer } from './helpers/balancer.ts'
import { sessionKeys, startCluster } from './helpers/hosts.ts'
import { keyPrefix, redisUrl } from './helpers/redis.ts'
import { startReplica } from './helpers/replica.ts'
import { get, initialize } from './helpers/sse-client.ts'
import { connectStock } from './helpers/stock-clients.ts'
import { cursorOf, dataOf, eventsOf } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

const cluster = await startCluster(t, 3)
const { url, balancer, hosts } = cluster

t.test('B38: session unknown on the other replica: no request needs the one before it', async t => {
  const from = balancer.requests.length
  const session = await initialize(url)
  const list = await session.request('tools/list')
  t.ok((await list.response()).result.tools.length > 0)
  t.equal((await (await session.call('echo', { text: 'hello' })).response()).result.content[0].text, 'hello')

  const listener = await session.listen()
  t.equal(listener.status, 200)
  await (await session.call('emit', { n: 2 })).response()
  const frames = await listener.stream.until(({ message }) => message?.params?.data?.i === 2)
  listener.cut()
  await (await session.call('emit', { n: 1 })).response()
  const resumed = await session.resume(cursorOf(frames)!)
  t.match(resumed.headers['mcp-resume'], /^resumed;cause=replay;replay=1;/)
  t.strictSame((await resumed.stream.until(({ message }) => message !== undefined)).at(-1)!.message.params.data.i, 1)

  const { status } = await session.del()
  t.equal(status, 204)
  t.equal((await session.request('tools/list')).status, 404)
  t.equal((await get(url, session.headers)).status, 404)
  t.strictSame(await sessionKeys(cluster, session.sessionId), [])

  const used = balancer.requests.slice(from).map(({ upstream }) => upstream)
  t.ok(used.every((upstream, i) => i === 0 || upstream !== used[i - 1]), 'every request went to another replica than the one before')
  t.equal(new Set(used).size, 3)
})

t.test('B27: two in-flight requests with one JSON-RPC id never swap answers', async t => {
  const session = await initialize(url)
  const [a, b] = [session.at(hosts[0]!.url), session.at(hosts[1]!.url)]
  for (const [where, second] of [['one replica', a], ['two replicas', b]] as const) {
    const slow = await a.call('work', { key: `b27 ${where}`, ms: 600 }, { id: 1 })
    const quick = await second.call('echo', { text: where }, { id: 1 })
    const listed = await second.request('tools/list', {}, { id: 1 })
    t.match(await quick.response(), { id: 1, result: { content: [{ text: where }] } }, `${where}: the second is served`)
    t.ok((await listed.response()).result.tools, `${where}: so is a third, of another method`)
    t.match(await slow.response(), { id: 1, result: { content: [{ text: `worked on b27 ${where}` }] } }, `${where}: the first is untouched`)
  }
  // The client's id comes back with its JSON type: ids that differ in nothing else are two.
  const [number, string] = await Promise.all([a.call('echo', { text: 'number' }, { id: 7 }), b.call('echo', { text: 'string' }, { id: '7' })])
  t.match(await number.response(), { id: 7, result: { content: [{ text: 'number' }] } })
  t.match(await string.response(), { id: '7', result: { content: [{ text: 'string' }] } })
})

t.test('B70: one server/transport object shared by clients: 50 clients get no foreign token', async t => {
  const sessions = await Promise.all(Array.from({ length: 50 }, () => initialize(url)))
  const foreign: unknown[] = []
  await Promise.all(sessions.map(async (session, client) => {
    await Promise.all(Array.from({ length: 8 }, async (_, id) => {
      const token = `client ${client} request ${id}`
      const call = await session.call('echo', { text: token }, { id })
      const response = await call.response(30_000)
      if (response.id !== id || response.result?.content?.[0]?.text !== token) foreign.push({ token, response })
    }))
  }))
  t.strictSame(foreign, [])
  for (const { stderr } of hosts) t.notOk(stderr.some(line => /already connected/i.test(line)))
})

t.test('B84: clients that never send Last-Event-ID get what was sent while they were away', async t => {
  const session = await initialize(url)
  const first = await session.listen()
  await (await session.call('emit', { n: 2 })).response()
  await first.stream.until(({ message }) => message?.params?.data?.i === 2)
  first.cut()
  // The watermark is written when the replica sees the cut.
  await until(async () => !(await hosts[0]!.mcp('session', session.sessionId)).listening, 'the cut is noticed')
  await (await session.call('emit', { n: 3 })).response()

  const second = await session.listen()
  t.match(second.headers['mcp-resume'], /^fresh;replay=3;/)
  await second.stream.until(({ message }) => message?.params?.data?.i === 3)
  t.strictSame(dataOf(eventsOf(second.stream.frames)).map(({ i }) => i), [1, 2, 3])
  second.cut()
  await until(async () => !(await hosts[0]!.mcp('session', session.sessionId)).listening, 'the second cut is noticed')

  // Re-initialised, and from then on only POSTs: the host can see that nobody listens.
  const next = await initialize(url)
  await (await next.call('emit', { n: 4 })).response()
  t.match(await hosts[1]!.mcp('session', next.sessionId), { listening: false, undelivered: 4 })
})

for (const sdk of [1, 2] as const) {
  t.test(`B38: stock clients 1 and 2, servers of SDK ${sdk}, every request on another replica`, async t => {
    const env = { REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t), SDK: sdk }
    const replicas = await Promise.all([startReplica(t, env), startReplica(t, env), startReplica(t, env)])
    const balancer = await startBalancer(t, replicas.map(({ url }) => url))
    for (const version of [1, 2] as const) {
      const asked: string[] = []
      const stock = await connectStock(t, version, balancer.url, {
        onElicit: ({ message }) => {
          asked.push(message)
          return { action: 'accept', content: { answer: `answer ${version}` } }
        }
      })
      const { tools } = await stock.client.listTools()
      t.ok(tools.length > 0)
      const names = new Set<string>()
      for (let i = 0; i < 3; i++) names.add(await stock.callText('whoami'))
      t.equal(names.size, 3, `client ${version}: three calls, three replicas`)
      t.equal(await stock.callText('ask'), `answer ${version}`, `client ${version}: the answer finds the handler`)
      t.equal(asked.length, 1)
      await stock.callText('emit', { n: 3, ms: 5 })
      await until(() => stock.notifications.length === 3, 'three notifications')
      const progress: number[] = []
      t.equal(await stock.callText('tick', { n: 5, ms: 5 }, { onprogress: ({ progress: n }) => progress.push(n) }), 'ticked 5')
      t.strictSame(progress, [1, 2, 3, 4, 5])
      await stock.terminate()
      t.strictSame(stock.errors, [], `client ${version}: no error`)
      await t.rejects(stock.callText('whoami'))
    }
  })
}
