// The timers on the way: those that cut what is silent, and those that close what is idle.
import { Agent, request, type IncomingMessage } from 'node:http'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { startBalancer } from './helpers/balancer.ts'
import { startCluster, type Host } from './helpers/hosts.ts'
import { seededRandom } from './helpers/random.ts'
import { initialize, type Session } from './helpers/sse-client.ts'

t.test('B94: silent streams outlive every idle timer on the way', async t => {
  const cluster = await startCluster(t, 2, { plugin: { keepAliveMs: 500 } })
  // The proxy's timer and the client's own, as the body timeout of an HTTP client.
  const balancer = await startBalancer(t, cluster.hosts.map(({ url }) => url), { idleMs: 3000 })
  const session = await initialize(balancer.url)
  const sent = performance.now()
  const listener = await session.listen()
  const call = await session.call('work', { key: 'silent', ms: 9000 })
  for (const { stream } of [listener, call]) {
    const { at } = await stream.next()
    t.comment(`first byte after ${Math.round(at - sent)} ms`)
    t.ok(at - sent < 5000, 'the first byte comes at once, not with the first message')
  }
  t.match(await call.response(20_000), { result: { content: [{ text: 'worked on silent' }] } })
  t.ok(call.stream.comments.length >= 9, `${call.stream.comments.length} heartbeats on the POST`)
  t.ok(listener.stream.comments.length >= 9, `${listener.stream.comments.length} heartbeats on the GET`)
  t.ok(listener.stream.isOpen)
  t.equal(balancer.requests.filter(({ method }) => method === 'GET').length, 1, 'nobody had to reconnect')

  // The same proxy without heartbeats in time: it is the heartbeats that keep the streams.
  const quiet = await startBalancer(t, cluster.hosts.map(({ url }) => url), { idleMs: 250 })
  const cut = await session.at(quiet.url).listen()
  t.equal(await cut.stream.ended, 'cut')
})

t.test('B104: pooled connections meet no reset, and the server keeps its own timeouts', async t => {
  const cluster = await startCluster(t, 1, { fastify: { keepAliveTimeout: 4000 } })
  const [host] = cluster.hosts as [Host]
  const session = await initialize(host.url)
  const random = seededRandom()
  t.comment(`SEED=${random.seed}`)
  // What a balancer does with its pool: it reuses connections that were idle for less than the server's timeout.
  const agent = new Agent({ keepAlive: true })
  const failures: unknown[] = []
  let reused = 0
  await Promise.all(Array.from({ length: 5 }, async () => {
    for (let i = 0; i < 5; i++) {
      await sleep(random.between(0, 2500))
      await pooled(session, agent).then(wasReused => { if (wasReused) reused++ }, error => failures.push(error))
    }
  }))
  agent.destroy()
  t.strictSame(failures, [])
  t.ok(reused > 0, `${reused} of 25 requests on a pooled connection`)
  const { timeouts: { before, after } } = await host.stats()
  t.strictSame(after, before)
  t.equal(after[0], 4000)
})

async function pooled (session: Session, agent: Agent): Promise<boolean> {
  const outgoing = request(session.url, {
    method: 'POST', agent, headers: { ...session.headers, 'content-type': 'application/json', accept: 'application/json, text/event-stream' }
  })
  outgoing.end(JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }))
  const [response] = await once(outgoing, 'response') as [IncomingMessage]
  response.resume()
  await once(response, 'end')
  if (response.statusCode !== 200) throw new Error(`answered ${response.statusCode}`)
  return outgoing.reusedSocket
}
