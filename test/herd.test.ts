// Many at once, and readers that do not read: what it costs a replica, and that it gets it back (B49, B110, B112).
import t from 'tap'
import { startCluster, type Cluster, type Host } from './helpers/hosts.ts'
import { startRedis } from './helpers/redis.ts'
import { initialize, type Answer, type Session } from './helpers/sse-client.ts'
import { cursorOf, eventsOf, offsets } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

const MEGA = 2 ** 20

async function connections ({ redis }: Cluster): Promise<number> {
  return Number(/connected_clients:(\d+)/.exec(await redis.info('clients'))![1])
}

function isNumber (n: number): (frame: { message: any }) => boolean {
  return ({ message }) => message?.params?.data?.i === n
}

t.test('B49: clients that leave during a replay leave nothing behind', async t => {
  const { url } = await startRedis(t)
  const cluster = await startCluster(t, 1, { redisUrl: url })
  const [host] = cluster.hosts as [Host]
  const session = await initialize(host.url)
  const first = await session.listen()
  const cursor = (await first.stream.next()).id!
  first.cut()
  await (await session.call('emit', { n: 3000, bytes: 200 })).response(60_000)
  const leave = async (times: number): Promise<void> => {
    for (let i = 0; i < times; i++) {
      const answer = await session.resume(cursor)
      await answer.stream.until(isNumber(10))
      answer.cut()
    }
    await until(async () => (await host.stats()).connections === 0, 'every connection is gone')
  }
  await leave(20)
  const before = { ...await host.stats(true), redis: await connections(cluster) }
  await leave(100)
  await until(async () => (await host.stats()).handles <= before.handles, 'the handles are back')
  const after = await host.stats(true)
  t.equal(await connections(cluster), before.redis)
  t.comment(`heap ${(before.heapUsed / MEGA).toFixed(1)} -> ${(after.heapUsed / MEGA).toFixed(1)} MB over 100 departures`)
  t.ok(after.heapUsed - before.heapUsed < 10 * MEGA)
  t.ok(after.timers <= before.timers)
  t.strictSame(after.uncaught, [])
})

t.test('B110: a herd that comes back after a deploy is served, and others meanwhile', async t => {
  const [CLIENTS, MISSED] = [80, 100]
  const cluster = await startCluster(t, 2)
  const [a, b] = cluster.hosts as [Host, Host]
  const clients: Array<{ session: Session, cursor: string }> = []
  const retries = new Set<number>()
  const opened: Array<{ session: Session, listener: Answer }> = []
  for (let i = 0; i < CLIENTS; i++) {
    const session = await initialize(a.url)
    opened.push({ session, listener: await session.listen() })
  }
  const leaving = a.sigterm()
  for (const { session, listener } of opened) {
    const frames = await listener.stream.rest()
    retries.add(frames.at(-1)!.retry!)
    clients.push({ session: session.at(b.url), cursor: cursorOf(frames)! })
  }
  t.equal((await leaving).code, 0)
  t.ok(retries.size > CLIENTS / 4, `the hints are spread: ${retries.size} different ones`)
  for (let i = 1; i <= MISSED; i++) await b.mcp('broadcast', { method: 'notifications/message', params: { level: 'info', data: { i } } })

  const before = { ...await b.stats(true), redis: await connections(cluster) }
  const bystander = await initialize(b.url)
  const took: number[] = []
  const served: number[] = []
  const herd = new AbortController()
  const others = (async () => {
    while (!herd.signal.aborted) {
      const at = performance.now()
      await (await bystander.call('echo', { text: 'ready?' })).response(30_000)
      served.push(performance.now() - at)
    }
  })()
  await Promise.all(clients.map(async ({ session, cursor }) => {
    const at = performance.now()
    const answer = await session.resume(cursor)
    t.match(answer.headers['mcp-resume'], new RegExp(`^resumed;cause=replay;replay=${MISSED};`))
    await answer.stream.until(isNumber(MISSED), 30_000)
    took.push(performance.now() - at)
    t.strictSame(eventsOf(answer.stream.frames).map(({ offset }) => offset), offsets(1, MISSED))
  }))
  herd.abort()
  await others
  const p95 = (times: number[]): number => Math.round(times.sort((x, y) => x - y)[Math.floor(times.length * 0.95)]!)
  const after = await b.stats(true)
  t.comment(`p95 of ${CLIENTS} resumes of ${MISSED} events: ${p95(took)} ms; others were served within ${p95(served)} ms; rss +${((after.rss - before.rss) / MEGA).toFixed(0)} MB`)
  t.ok(p95(took) < 15_000)
  t.ok(p95(served) < 15_000)
  t.ok(after.rss - before.rss < 150 * MEGA)
  t.equal(await connections(cluster), before.redis)
})

t.test('B112: readers that sleep cost bounded memory, are dropped, and find everything in the log', async t => {
  const [READERS, EVENTS, BYTES] = [5, 200, 60_000]
  const cluster = await startCluster(t, 1, { plugin: { stallMs: 1500, keepAliveMs: 300, retention: { maxBytes: 64 * MEGA } } })
  const [host] = cluster.hosts as [Host]
  const readers = await Promise.all(Array.from({ length: READERS }, async () => {
    const session = await initialize(host.url)
    const listener = await session.listen()
    await listener.stream.next()
    listener.stream.pause()
    return { session, listener }
  }))
  const before = await host.stats(true)
  await Promise.all(readers.map(async ({ session }) => await (await session.call('emit', { n: EVENTS, bytes: BYTES })).response(50_000)))
  const full = await host.stats(true)
  t.comment(`${READERS * EVENTS * BYTES / MEGA | 0} MB sent, heap +${((full.heapUsed - before.heapUsed) / MEGA).toFixed(0)} MB, rss +${((full.rss - before.rss) / MEGA).toFixed(0)} MB`)
  t.ok(full.heapUsed - before.heapUsed < READERS * 4 * MEGA, 'what they do not read is not kept here')

  await until(async () => (await host.stats()).connections === 0, 'they are dropped', 20_000)
  for (const { session, listener } of readers) {
    listener.stream.resume()
    await listener.stream.ended
    const taken = eventsOf(listener.stream.frames)
    const resumed = await session.resume(cursorOf(listener.stream.frames)!)
    t.match(resumed.headers['mcp-resume'], /^resumed;cause=replay;/)
    await resumed.stream.until(isNumber(EVENTS), 20_000)
    t.strictSame([...taken, ...eventsOf(resumed.stream.frames)].map(({ offset }) => offset), offsets(1, EVENTS))
    resumed.cut()
  }
  t.strictSame((await host.stats()).uncaught, [])
})
