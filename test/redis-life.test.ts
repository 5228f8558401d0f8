// B109: what a replica does with its Redis from start to end.
import { Redis } from 'ioredis'
import t from 'tap'
import { startHost, type Host } from './helpers/hosts.ts'
import { startRedis } from './helpers/redis.ts'
import { initialize } from './helpers/sse-client.ts'
import { until } from './helpers/wait.ts'

const plugin = { patienceMs: 500, commandTimeoutMs: 500 }

async function connected (url: string): Promise<number> {
  const redis = new Redis(url)
  const info = await redis.info('clients')
  redis.disconnect()
  return Number(/connected_clients:(\d+)/.exec(info)![1]) - 1
}

async function echoes (host: Host): Promise<void> {
  const session = await initialize(host.url)
  const { result } = await (await session.call('echo', { text: 'up' })).response()
  if (result.content[0].text !== 'up') throw new Error('no echo')
}

for (const ownRedis of [false, true]) {
  const whose = ownRedis ? "the plugin's own client" : "the host's client"

  t.test(`B109: Redis is down at the start, ${whose}`, async t => {
    const redis = await startRedis(t)
    await redis.kill9()
    const host = await startHost(t, { redisUrl: redis.url, ownRedis, plugin })
    const at = performance.now()
    await t.rejects(initialize(host.url), /-31004/, 'the app is up, and says that its log is not')
    t.ok(performance.now() - at < 10_000, 'in bounded time')
    t.ok((await host.stats()).counters.away > 0)
    t.ok(host.stderr.some(line => /ECONNREFUSED/.test(line)), 'the reason is in its log')
    await redis.restart()
    await until(() => echoes(host).then(() => true, () => false), 'it serves as soon as Redis is there', 20_000)

    await redis.kill9()
    await t.rejects(initialize(host.url), /-31004/, 'lost at run time')
    await redis.restart()
    await until(() => echoes(host).then(() => true, () => false), 'it serves again without a restart', 20_000)
    t.strictSame((await host.stats()).uncaught, [])
  })

  t.test(`B109: a wrong password, ${whose}`, async t => {
    const redis = await startRedis(t)
    const admin = new Redis(redis.url)
    t.teardown(() => admin.disconnect())
    await admin.config('SET', 'requirepass', 'right')
    const host = await startHost(t, { redisUrl: redis.url.replace('redis://', 'redis://:wrong@'), ownRedis, plugin })
    await t.rejects(initialize(host.url), /-31004/)
    t.ok(host.stderr.some(line => /WRONGPASS/.test(line)), 'the reason is in its log')
    t.strictSame((await host.stats()).uncaught, [])
  })

  t.test(`B109: closing, ${whose}`, async t => {
    const redis = await startRedis(t)
    const host = await startHost(t, { redisUrl: redis.url, ownRedis, plugin })
    const session = await initialize(host.url)
    await (await session.listen()).stream.next()
    await host.close()
    if (ownRedis) {
      await until(async () => await connected(redis.url) === 0, 'every connection is closed')
    } else {
      t.equal((await host.stats()).redis, 'ready', 'stays open')
      await until(async () => await connected(redis.url) === 1, "the plugin's own are closed")
    }
    const { code, signal } = await host.sigterm()
    t.strictSame([code, signal], [0, null], 'nothing keeps the process up')
  })

  t.test(`B109: closing while Redis is away, ${whose}`, async t => {
    const redis = await startRedis(t)
    for (const away of ['frozen', 'down']) {
      const host = await startHost(t, { redisUrl: redis.url, ownRedis, plugin: { ...plugin, graceMs: 500 } })
      const session = await initialize(host.url)
      const listener = await session.listen()
      await session.call('tick', { n: 1000, ms: 50 })
      if (away === 'frozen') redis.freeze()
      else await redis.kill9()
      const { ms } = await host.close()
      t.comment(`${away}: closed after ${Math.round(ms)} ms`)
      t.ok(ms < 15_000)
      t.equal(await listener.stream.ended, 'end')
      t.strictSame((await host.stats()).uncaught, [])
      if (away === 'frozen') redis.thaw()
    }
  })
}
