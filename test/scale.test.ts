// What a replica costs: connections to Redis, commands of idle streams, instances of idle sessions.
import { Agent, request } from 'node:http'
import type { ClientRequest, IncomingMessage } from 'node:http'
import { once } from 'node:events'
import t from 'tap'
import { startCluster, type Host } from './helpers/hosts.ts'
import { startRedis } from './helpers/redis.ts'
import { initialize, type Session } from './helpers/sse-client.ts'
import { until } from './helpers/wait.ts'

const STREAMS = 2000
const SESSIONS_AT_ONCE = 25

async function inParallel (count: number, width: number, run: (i: number) => Promise<void>): Promise<void> {
  let next = 0
  await Promise.all(Array.from({ length: width }, async () => {
    while (next < count) await run(next++)
  }))
}

/** A GET that is read and thrown away: the client side of thousands must cost little. */
async function listen (session: Session, agent: Agent): Promise<ClientRequest> {
  const outgoing = request(session.url, { headers: { ...session.headers, accept: 'text/event-stream' }, agent })
  outgoing.on('error', () => {})
  outgoing.end()
  const [incoming] = await once(outgoing, 'response') as [IncomingMessage]
  if (incoming.statusCode !== 200) throw new Error(`GET was answered ${incoming.statusCode}`)
  incoming.on('error', () => {})
  incoming.resume()
  return outgoing
}

t.test(`B47: ${STREAMS} open streams need no more connections to Redis than none, and one cheap command a tick`, async t => {
  const { url } = await startRedis(t)
  const cluster = await startCluster(t, 1, { redisUrl: url, plugin: { keepAliveMs: 20_000, idleMs: 1000 } })
  const [host] = cluster.hosts as [Host]
  const connections = async (): Promise<number> => Number(/connected_clients:(\d+)/.exec(await cluster.redis.info('clients'))![1])
  await initialize(host.url)
  const before = await connections()

  const agent = new Agent({ keepAlive: false, maxSockets: Infinity })
  const streams: ClientRequest[] = []
  await inParallel(STREAMS, SESSIONS_AT_ONCE, async () => {
    const session = await initialize(host.url)
    streams.push(await listen(session, agent))
  })
  t.equal((await host.stats()).connections, STREAMS)
  t.equal(await connections(), before, `${before} connections, the test's own among them`)

  await until(async () => (await host.stats()).servers === 0, 'the idle instances to be let go', 30_000)
  t.equal((await host.stats()).connections, STREAMS, 'an idle session costs its connection, but no SDK server')

  // Every stream ticks once in 20 s, and each session with an open stream is kept alive once in 5 s.
  const commands = async (): Promise<number> => Number(/total_commands_processed:(\d+)/.exec(await cluster.redis.info('stats'))![1])
  const ticks = async (): Promise<number> => Number(/cmdstat_evalsha:calls=(\d+)/.exec(await cluster.redis.info('commandstats'))![1])
  const [c, e, at] = [await commands(), await ticks(), performance.now()]
  await until(async () => await ticks() - e >= STREAMS, 'every stream to have ticked', 60_000)
  const seconds = (performance.now() - at) / 1000
  const perStream = (await ticks() - e) / STREAMS
  t.comment(`${STREAMS} idle streams: ${((await ticks() - e) / seconds).toFixed(0)} scripts/s, ${((await commands() - c) / seconds).toFixed(0)} commands/s with those inside scripts`)
  t.ok(perStream / seconds <= 1.5 / 20 + 0.01, `one script per stream and tick: ${(perStream / seconds * 20).toFixed(2)} in 20 s`)

  for (const stream of streams) stream.destroy()
  await until(async () => (await host.stats()).connections === 0, 'the connections to be gone', 30_000)
  t.equal(await connections(), before)
  t.strictSame((await host.stats()).uncaught, [])
})

t.test('a closed replica leaves no timer, no socket and no lease', async t => {
  const { url } = await startRedis(t)
  const cluster = await startCluster(t, 1, { redisUrl: url })
  const [host] = cluster.hosts as [Host]
  const session = await initialize(host.url)
  await session.listen()
  await host.sigterm().then(({ code }) => t.equal(code, 0, 'the process ends by itself'))
  await until(async () => Number(/connected_clients:(\d+)/.exec(await cluster.redis.info('clients'))![1]) === 1, 'its connections to be gone')
  t.strictSame((await cluster.redis.keys(`${cluster.keyPrefix}lease:*`)), [])
  t.ok(await cluster.redis.exists(`${cluster.keyPrefix}{${session.sessionId}}`), 'its session lives on')
})
