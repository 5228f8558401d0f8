// Who may say of another replica that it is dead: only one whose own lease was never in doubt.
import t from 'tap'
import { LEASE_MS, RedisLease } from '../lib/lease.ts'
import { Keys } from '../lib/log/keys.ts'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { connectRedis, keyPrefix, redisUrl } from './helpers/redis.ts'
import { until } from './helpers/wait.ts'

const keys = new Keys(keyPrefix(t))

function passed (since: number, ms: number): Promise<unknown> {
  return until(() => performance.now() - since > ms, `${ms} ms to pass`, ms + 5000)
}

t.test('a stall of Redis that lets every lease expire is no death, whoever is heard first afterwards', async t => {
  const proxy = await startFaultProxy(t, redisUrl())
  const direct = await connectRedis(t)
  const redis = await connectRedis(t, proxy.url)
  const listeners = redis.listenerCount('ready')
  const began = performance.now()
  const lease = new RedisLease({ redis, keys, replica: 'judge' })
  await until(async () => await direct.exists(keys.lease('judge')) === 1, 'it holds a lease')
  await direct.set(keys.lease('alive'), '1')
  t.strictSame([...await lease.dead(['alive', 'dead'])], [], 'nobody before it was held for a whole period')
  await passed(began, LEASE_MS + 500)
  t.strictSame([...await lease.dead(['alive', 'dead'])], ['dead'])

  // Redis stands still for the judge; what it asks is answered after the stall, when every lease has expired.
  proxy.stall()
  const stalled = performance.now()
  const asked = [lease.dead(['alive'])]
  await passed(stalled, 3500)
  asked.push(lease.dead(['alive']))
  await direct.del(keys.lease('alive'))
  await passed(stalled, 5000)
  asked.push(lease.dead(['alive']))
  proxy.restore()
  for (const dead of asked) t.strictSame([...await dead], [])
  t.strictSame([...await lease.dead(['alive'])], [], 'nor at once after it')
  const over = performance.now()
  await passed(over, LEASE_MS - 1500)
  t.strictSame([...await lease.dead(['alive'])], [], 'nor before another period is over')
  await until(async () => (await lease.dead(['alive'])).size === 1, 'then it judges again', 20_000)

  await lease.close()
  t.equal(await direct.exists(keys.lease('judge')), 0)
  t.equal(redis.listenerCount('ready'), listeners, 'the client is left as it was')
})
