// Sessions that no client ever ends (B105), clocks that jump (B107), and caps per principal.
import t from 'tap'
import { sessionKeys, startCluster } from './helpers/hosts.ts'
import { keysUnder } from './helpers/redis.ts'
import { initialize } from './helpers/sse-client.ts'
import { until } from './helpers/wait.ts'

const SESSIONS = 150

t.test('B105: abandoned sessions, with a listener that is gone or without one, leave nothing behind', async t => {
  const cluster = await startCluster(t, 1, { plugin: { sessionTtlMs: 2000, handshakeMs: 1000, idleMs: 1000, keepAliveMs: 300, retryMs: 100 } })
  const [host] = cluster.hosts as [typeof cluster.hosts[number]]
  const abandon = async (count: number): Promise<void> => {
    for (let i = 0; i < count; i++) {
      const session = await initialize(host.url, i % 3 === 0 ? { initialized: false } : {})
      if (i % 3 === 2) (await session.listen()).cut()
    }
  }
  const gone = async (): Promise<void> => {
    await until(async () => (await keysUnder(cluster.redis, cluster.keyPrefix)).every(key => /lease:|sessions$/.test(key)), 'the keys to expire', 20_000)
    await until(async () => (await host.stats()).servers === 0, 'the instances to be let go', 20_000)
  }
  // The first round warms up what stays: compiled code, the parsers' tables, the pools.
  await abandon(SESSIONS / 3)
  await gone()
  const before = await host.stats(true)
  await abandon(SESSIONS)
  const full = await host.stats(true)
  await gone()
  await until(async () => (await host.stats()).connections === 0, 'the connections to be gone')
  await until(async () => (await host.stats()).handles <= before.handles, 'the handles to be gone')
  const after = await host.stats(true)
  const mega = (bytes: number): string => `${(bytes / 2 ** 20).toFixed(1)} MB`
  t.comment(`heap before ${mega(before.heapUsed)}, with ${SESSIONS} sessions ${mega(full.heapUsed)}, after ${mega(after.heapUsed)}`)
  t.ok(after.heapUsed - before.heapUsed < Math.max(4 * 2 ** 20, (full.heapUsed - before.heapUsed) / 2), 'the heap is back')
  t.ok(after.timers <= before.timers, 'no timer is left')
  t.strictSame(after.uncaught, [])
})

t.test('a session lives as long as it is used, by whatever replica: an open connection, a running call', async t => {
  const cluster = await startCluster(t, 2, { plugin: { sessionTtlMs: 1500, handshakeMs: 1500, keepAliveMs: 300, retryMs: 100 } })
  const [a, b] = cluster.hosts as [typeof cluster.hosts[number], typeof cluster.hosts[number]]
  const listening = await initialize(a.url)
  const calling = await initialize(a.url)
  const idle = await initialize(a.url)
  await listening.at(b.url).listen()
  const call = await calling.at(b.url).call('work', { key: 'long', ms: 5000 })
  call.cut()
  await until(async () => (await sessionKeys(cluster, idle.sessionId)).length === 0, 'the idle session to expire')
  const ended = async (): Promise<boolean> => (await b.happenings()).some(({ key, what }) => key === 'long' && what === 'ended')
  await until(ended, 'the call to end')
  t.equal((await sessionKeys(cluster, listening.sessionId)).length, 2, 'the listener held its session')
  t.equal((await sessionKeys(cluster, calling.sessionId)).length, 2, 'the call held its session, although nobody was connected')
  t.equal((await idle.call('echo', { text: 'x' })).status, 404)
})

for (const shiftClockMs of [3_600_000, -3_600_000]) {
  t.test(`B107: a replica whose clock is ${shiftClockMs / 60_000} minutes off keeps order, life and broadcasts right`, async t => {
    const cluster = await startCluster(t, 1)
    const [right] = cluster.hosts as [typeof cluster.hosts[number]]
    const wrong = await cluster.add({ shiftClockMs })
    const session = await initialize(right.url)
    const listener = await session.at(wrong.url).listen()
    for (let i = 1; i <= 6; i++) {
      await [right, wrong][i % 2]!.mcp('notify', session.sessionId, { method: 'notifications/message', params: { level: 'info', data: { i } } })
    }
    const frames = await listener.stream.until(({ message }) => message?.params?.data?.i === 6)
    t.strictSame(frames.flatMap(({ message }) => message?.params?.data?.i ?? []), [1, 2, 3, 4, 5, 6])
    await wrong.shiftClock(-shiftClockMs)
    const second = await initialize(wrong.url)
    for (const host of [right, wrong]) {
      t.equal(await host.mcp('broadcast', { method: 'notifications/message', params: { level: 'info', data: host.id } }), 2, 'both sessions are known everywhere')
    }
    t.equal((await sessionKeys(cluster, session.sessionId)).length, 2)
    t.equal((await second.at(right.url).call('echo', { text: 'there' })).status, 200)
  })
}

t.test('B107: a replica that was stopped for twice the life of a session neither wipes nor revives anything', async t => {
  const cluster = await startCluster(t, 2, { plugin: { sessionTtlMs: 1500, handshakeMs: 1500, keepAliveMs: 300, retryMs: 100 } })
  const [a, b] = cluster.hosts as [typeof cluster.hosts[number], typeof cluster.hosts[number]]
  const used = await initialize(a.url)
  const unused = await initialize(a.url)
  const listener = await used.at(b.url).listen()
  a.freeze()
  await until(async () => (await sessionKeys(cluster, unused.sessionId)).length === 0, 'the unused session to expire')
  a.thaw()
  await a.stats()
  t.equal((await used.call('echo', { text: 'x' })).status, 200, 'what was used elsewhere is there')
  t.equal((await unused.call('echo', { text: 'x' })).status, 404, 'what expired stays gone')
  t.strictSame(await sessionKeys(cluster, unused.sessionId), [])
  await a.mcp('notify', used.sessionId, { method: 'notifications/message', params: { level: 'info', data: 'still' } })
  t.ok(await listener.stream.until(({ message }) => message?.params?.data === 'still'))
})

t.test('sessions per principal are capped: the longest idle one goes, or the new one is refused', async t => {
  const evicting = await startCluster(t, 2, { plugin: { maxSessionsPerPrincipal: 2 } })
  const [a, b] = evicting.hosts as [typeof evicting.hosts[number], typeof evicting.hosts[number]]
  const as = (user: string) => ({ headers: { 'x-user': user } })
  const first = await initialize(a.url, as('ann'))
  const second = await initialize(b.url, as('ann'))
  const others = await initialize(a.url, as('bob'))
  // A session's life starts anew when an eighth of it is over; until then the older one counts as idle for longer.
  const third = await initialize(b.url, as('ann'))
  t.equal((await first.call('echo', { text: '1' })).status, 404, 'the oldest is gone')
  t.equal((await second.call('echo', { text: '2' })).status, 200)
  t.equal((await third.at(a.url).call('echo', { text: '3' })).status, 200)
  t.equal((await others.call('echo', { text: 'b' })).status, 200, 'nobody else is touched')
  t.strictSame(await sessionKeys(evicting, first.sessionId), [])

  const refusing = await startCluster(t, 1, { plugin: { maxSessionsPerPrincipal: 1, onSessionLimit: 'refuse' } })
  const only = await initialize(refusing.hosts[0]!.url, as('ann'))
  await t.rejects(initialize(refusing.hosts[0]!.url, as('ann')), /has 1 sessions already/)
  t.equal((await only.call('echo', { text: 'x' })).status, 200)
  await only.del()
  t.ok(await initialize(refusing.hosts[0]!.url, as('ann')), 'there is room again')
})
