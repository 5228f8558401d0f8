// Replicas that die, are stopped, or only look dead (B42; DESIGN.md section 8, "Leases").
import t from 'tap'
import { startCluster, type Host } from './helpers/hosts.ts'
import { startRedis } from './helpers/redis.ts'
import { initialize } from './helpers/sse-client.ts'
import { eventsOf } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

const LEASE_MS = 6000
const SETTLED_MS = 40_000

/** Replicas judge nobody before their own lease has been unbroken for a whole period. */
async function judging (hosts: readonly Host[], at: number): Promise<void> {
  await until(() => performance.now() - at > LEASE_MS + 500, 'the replicas to have held their leases', 20_000)
  await Promise.all(hosts.map(async host => await host.stats()))
}

const isResult = (message: any): boolean => message?.result !== undefined || message?.error !== undefined

t.test('B42: kill -9 during a call: what was logged, then one definite end, whichever replica notices', async t => {
  const started = performance.now()
  const cluster = await startCluster(t, 3)
  const [a, b, c] = cluster.hosts as [Host, Host, Host]
  const session = await initialize(a.url)
  const idle = await initialize(a.url)
  const call = await session.call('tick', { n: 1000, ms: 50 })
  const first = await call.stream.until(({ message }) => message?.params?.data?.i === 3)
  await judging([b, c], started)
  await a.kill9()
  const killed = performance.now()

  const echo = await (await idle.at(b.url).call('echo', { text: 'up' })).response()
  const servedMs = performance.now() - killed
  t.equal(echo.result.content[0].text, 'up')

  // Two listeners for one lost call, on two replicas: the older is taken over, and only one response is ever logged.
  const older = await session.at(b.url).resume(first.at(-1)!.id!)
  const answer = await session.at(c.url).resume(first.at(-1)!.id!)
  const rest = eventsOf(await answer.stream.rest(SETTLED_MS))
  const settledMs = performance.now() - killed
  t.comment(`new requests after ${servedMs.toFixed(0)} ms, settled after ${(settledMs / 1000).toFixed(1)} s`)
  older.cut()
  const data = rest.flatMap(({ message }) => message?.params?.data?.i ?? [])
  t.strictSame(data, data.map((_, i) => 4 + i), 'what it had logged comes first, in order')
  t.match(rest.at(-1)!.message, { id: call.id, result: { isError: true } }, 'then the definite end')
  const again = await session.at(b.url).resume(first.at(-1)!.id!)
  const all = eventsOf(await again.stream.rest())
  t.equal(all.filter(({ message }) => isResult(message)).length, 1, 'settled once')
  t.equal((await session.at(c.url).resume(all.at(-1)!.id)).status, 204)
  const lost = (await Promise.all([b, c].map(async host => (await host.stats()).counters.lost))).reduce((sum, n) => sum + n)
  t.equal(lost, 1, 'and counted once')
})

t.test('a replica that was stopped for longer than its lease cannot write late: its call is settled, its handler aborted', async t => {
  const started = performance.now()
  const cluster = await startCluster(t, 2)
  const [a, b] = cluster.hosts as [Host, Host]
  const session = await initialize(a.url)
  const call = await session.call('tick', { n: 1000, ms: 50 })
  const first = await call.stream.until(({ message }) => message?.params?.data?.i === 2)
  await judging([b], started)
  a.freeze()
  call.cut()
  const answer = await session.at(b.url).resume(first.at(-1)!.id!)
  const settled = eventsOf(await answer.stream.rest(SETTLED_MS))
  t.match(settled.at(-1)!.message, { result: { isError: true } })
  a.thaw()
  await until(async () => (await a.stats()).counters.dropped > 0, 'the late append to be refused', 20_000)
  const again = await session.at(b.url).resume(first.at(-1)!.id!)
  t.strictSame(eventsOf(await again.stream.rest()).map(({ id }) => id), settled.map(({ id }) => id), 'nothing was added')
  t.equal((await (await session.call('echo', { text: 'awake' })).response()).result.content[0].text, 'awake', 'and it serves again')
  t.strictSame((await a.stats()).uncaught, [])
})

t.test('a replica that closes before its call is done leaves it to be settled', async t => {
  const cluster = await startCluster(t, 2, { plugin: { graceMs: 0 } })
  const [a, b] = cluster.hosts as [Host, Host]
  const session = await initialize(a.url)
  const call = await session.call('work', { key: 'cut short', ms: 60_000, stubborn: true })
  const opening = await call.stream.next()
  await a.close()
  const answer = await session.at(b.url).resume(opening.id!)
  const settled = eventsOf(await answer.stream.rest(SETTLED_MS))
  t.match(settled.at(-1)!.message, { id: call.id, result: { isError: true } })
})

t.test('a Redis that stands still for longer than a lease kills no call that runs', async t => {
  const started = performance.now()
  const redis = await startRedis(t)
  const cluster = await startCluster(t, 2, { redisUrl: redis.url })
  const [a, b] = cluster.hosts as [Host, Host]
  const session = await initialize(a.url)
  const call = await session.call('tick', { n: 150, ms: 100 })
  const first = await call.stream.until(({ message }) => message?.params?.data?.i === 2)
  // Carried by the other replica, which is the one that would judge.
  call.cut()
  const answer = await session.at(b.url).resume(first.at(-1)!.id!)
  await judging([a, b], started)
  redis.freeze()
  const frozen = performance.now()
  await until(() => performance.now() - frozen > LEASE_MS + 2000, 'longer than a lease to pass', 20_000)
  redis.thaw()
  const rest = eventsOf(await answer.stream.rest(SETTLED_MS))
  t.match(rest.at(-1)!.message, { result: { content: [{ text: 'ticked 150' }] } }, 'the call has its own result')
  t.notOk(rest.at(-1)!.message.result.isError)
  const data = rest.flatMap(({ message }) => message?.params?.data?.i ?? [])
  t.strictSame(data, data.map((_, i) => 3 + i), 'and every notification, once')
  t.equal((await b.stats()).counters.lost, 0)
})
