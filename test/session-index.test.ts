// Which sessions there are, and whose: the sets beside the sessions' own keys.
import t from 'tap'
import { Keys } from '../lib/log/keys.ts'
import { RedisLog } from '../lib/log/redis-log.ts'
import type { SessionRecord } from '../lib/log/log.ts'
import { connectRedis, keyPrefix } from './helpers/redis.ts'
import type { Owner } from './helpers/teardown.ts'
import { until } from './helpers/wait.ts'

const record: SessionRecord = {
  version: '2025-11-25', initialize: {}, capabilities: {}, principal: 'p', initialized: false, logLevel: undefined, subscriptions: []
}

async function open (t: Owner, sessionTtlMs: number) {
  const keys = new Keys(keyPrefix(t))
  const redis = await connectRedis(t)
  const retention = { windowMs: 60_000, maxEvents: 100, maxBytes: 100_000 }
  const newLog = (replica: string): RedisLog => new RedisLog({ redis, keys, replica, retention, sessionTtlMs, commandTimeoutMs: 5000 })
  return { keys, redis, newLog, log: newLog('a') }
}

const sids = Array.from({ length: 4 }, (_, i) => String(i).repeat(32)) as [string, string, string, string]

t.test('the longest idle is told by use, not by what is left of the time to live', async t => {
  const { log, keys, redis } = await open(t, 3_600_000)
  const [used, idle, fresh] = sids
  for (const sid of [used, idle]) {
    await log.create(sid, record, 60_000)
    await log.change(sid, { kind: 'initialized', ttlMs: 3_600_000 })
  }
  await log.touch([])
  // Both were noted minutes ago. A time to live starts anew only when an eighth of it is gone, so the one in use has less left.
  for (const sid of [used, idle]) await redis.zincrby(keys.sessions, -300_000, sid)
  await redis.pexpire(keys.session(used)[0], 3_650_000)
  await log.snapshot(used, 'p', undefined)
  await log.touch([])
  t.strictSame(await log.sessionsOf('p'), [idle, used])

  await log.create(fresh, record, 60_000)
  t.equal((await log.sessionsOf('p'))[0], fresh, 'one that has not finished its handshake goes first')
  await log.change(fresh, { kind: 'initialized', ttlMs: 3_600_000 })
  t.equal((await log.sessionsOf('p'))[0], idle, 'then it counts as just used')
})

t.test('a session counts for its principal for as long as it is used, also when nobody opens another one', async t => {
  const { log, newLog, keys, redis } = await open(t, 1000)
  const [first, second] = sids
  await log.create(first, record, 1000)
  await log.change(first, { kind: 'initialized', ttlMs: 1000 })
  const other = newLog('b')
  const since = performance.now()
  while (performance.now() - since < 3000) {
    // Its requests are served elsewhere now.
    await other.snapshot(first, 'p', undefined)
    await other.touch([first])
  }
  t.strictSame(await log.sessionsOf('p'), [first])

  await log.create(second, record, 1000)
  await log.terminate(second)
  t.strictSame(await redis.zrange(keys.principal('p'), '0', '-1'), [first], 'what is ended is nobody\'s')
  await until(async () => await redis.exists(keys.sessions, keys.principal('p')) === 0, 'the sets go with the last session')
})

t.test('what has ended elsewhere is not noted again', async t => {
  const { log, newLog, keys, redis } = await open(t, 60_000)
  const [sid] = sids
  await log.create(sid, record, 60_000)
  const other = newLog('b')
  await other.snapshot(sid, 'p', undefined)
  await log.terminate(sid)
  other.forget(sid)
  await other.touch([sid])
  await log.touch([sid])
  t.equal(await redis.exists(keys.sessions, keys.principal('p')), 0)
})
