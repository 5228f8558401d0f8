// Closing an app that has open streams and running calls (B97, B98).
import { Agent, request } from 'node:http'
import { once } from 'node:events'
import t from 'tap'
import { startCluster, type Host } from './helpers/hosts.ts'
import { initialize } from './helpers/sse-client.ts'
import { connectStock } from './helpers/stock-clients.ts'
import { eventsOf } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

const GRACE_MS = 2500

for (const forceCloseConnections of [undefined, true, false, 'idle'] as const) {
  t.test(`B97: close() within the grace, with forceCloseConnections ${String(forceCloseConnections)}`, async t => {
    const cluster = await startCluster(t, 2, {
      plugin: { graceMs: GRACE_MS },
      fastify: forceCloseConnections === undefined ? {} : { forceCloseConnections }
    })
    const [a, b] = cluster.hosts as [Host, Host]
    const session = await initialize(a.url)
    const listener = await session.listen()
    const primed = await listener.stream.next()
    const others = await Promise.all([1, 2, 3, 4].map(async () => await (await initialize(a.url)).listen()))
    const quick = await session.call('work', { key: 'quick', ms: 700, say: 'nearly there' })
    const slow = await session.call('work', { key: 'slow', ms: 60_000 })
    const [quickOpening, slowOpening] = [await quick.stream.next(), await slow.stream.next()]
    const agent = new Agent({ keepAlive: true })
    for (let i = 0; i < 3; i++) {
      const idle = request(a.url, { method: 'POST', agent }).end()
      const [response] = await once(idle, 'response')
      response.resume()
    }

    const closing = a.close()
    const bye = (await listener.stream.rest()).at(-1)!
    t.equal(await listener.stream.ended, 'end', 'the listener ends gracefully, at once')
    t.ok(bye.retry! >= 2000 && bye.retry! <= 3000, `with a delay for the reconnect (${bye.retry} ms)`)
    t.equal(bye.id!.split('.')[0], primed.id!.split('.')[0], 'and its cursor')
    for (const other of others) t.equal(await other.stream.ended, 'end')
    const answered = await quick.stream.rest()
    t.match(answered.at(-1)!.message.result.content[0].text, 'worked on quick', 'a call that ends in time is answered on its own connection')
    t.equal(await quick.stream.ended, 'end')
    const left = await slow.stream.rest(GRACE_MS + 10_000)
    t.ok(left.at(-1)?.retry !== undefined, 'a call that does not is left with a delay for the reconnect')
    const { ms, redis } = await closing
    t.comment(`closed after ${Math.round(ms)} ms`)
    t.ok(ms < GRACE_MS + 10_000, 'close() returns')
    t.equal(redis, 'ready', "the host's own Redis client stays open")
    agent.destroy()

    const replayed = await session.at(b.url).resume(quickOpening.id!)
    t.match(eventsOf(await replayed.stream.rest()).at(-1)!.message, { id: quick.id }, 'results stay resumable elsewhere')
    const resumed = await session.at(b.url).resume(slowOpening.id!)
    t.match(eventsOf(await resumed.stream.rest(40_000)).at(-1)!.message, { id: slow.id, result: { isError: true } }, 'what never ended is told as lost')
  })
}

for (const return503OnClosing of [false, true]) {
  t.test(`B98: requests that arrive while it closes, with return503OnClosing ${String(return503OnClosing)}`, async t => {
    const cluster = await startCluster(t, 1, { plugin: { graceMs: 5000 }, fastify: { return503OnClosing } })
    const [host] = cluster.hosts as [Host]
    const warned = host.stderr.some(line => line.includes('return503OnClosing: false'))
    t.equal(warned, return503OnClosing, 'the plugin warns where it is not set')
    const session = await initialize(host.url)
    const listener = await session.listen()
    // An open connection of its own, since the listening socket is closed for new ones at some point.
    const call = await session.call('work', { key: 'holds it open', ms: 3000 })
    const closing = host.close()
    await listener.stream.ended
    const answer = await session.call('echo', { text: 'late' })
    if (return503OnClosing) {
      t.equal(answer.status, 503, "Fastify's own answer")
    } else {
      t.equal(answer.status, 200)
      t.equal(answer.headers.connection, 'close')
      t.match(await answer.response(), { result: { content: [{ text: 'late' }] } }, 'is served')
      const late = await session.listen()
      t.equal((await late.stream.rest()).at(-1)!.retry! >= 2000, true, 'a late listener is sent away at once, with its cursor')
    }
    t.match(await call.response(), { result: { content: [{ text: 'worked on holds it open' }] } })
    await closing
  })
}

t.test('B98: a rolling deploy goes unnoticed by both stock clients', async t => {
  const cluster = await startCluster(t, 2, { plugin: { graceMs: 8000 } })
  const clients = await Promise.all(([1, 2] as const).map(async sdk => await connectStock(t, sdk, cluster.url)))
  const results = clients.map(async (client, i) => await client.callText('work', { key: `w${i}`, ms: 2500 }))
  await until(async () => (await Promise.all(cluster.hosts.map(async host => (await host.happenings()).length))).reduce((sum, n) => sum + n) === 2, 'both calls to run')
  for (const old of cluster.hosts) {
    const fresh = await cluster.add()
    cluster.balancer.targets = cluster.balancer.targets.map(url => url === old.url ? fresh.url : url)
    const { code } = await old.sigterm()
    t.equal(code, 0)
  }
  t.strictSame(await Promise.all(results), ['worked on w0', 'worked on w1'])
  for (const client of clients) {
    t.equal(await client.callText('echo', { text: 'the same session' }), 'the same session')
    await client.callText('emit', { n: 2 })
    await until(() => client.notifications.length >= 2, 'the listener to have come back')
    t.strictSame(client.notifications.map(({ params }) => params.data.i), [1, 2])
  }
})
