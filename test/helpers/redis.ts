import { randomBytes } from 'node:crypto'
import { Redis } from 'ioredis'
import type { Owner } from './teardown.ts'

export { startRedis } from './redis-server.ts'

/** The Redis that all tests share; the test script provides it. */
export function redisUrl (): string {
  const url = process.env['REDIS_URL']
  if (!url) throw new Error('REDIS_URL is not set: run `npm test`, or `node scripts/with-redis.mjs tap test/some.test.ts`')
  return url
}

/**
 * A key prefix of its own for a test; at teardown the keys under it are deleted, and no others.
 * Teardown runs backwards: ask for the prefix before starting the replicas that use it.
 */
export function keyPrefix (t: Owner): string {
  const prefix = `test-${randomBytes(6).toString('hex')}:`
  t.teardown(() => deleteKeys(prefix))
  return prefix
}

/** A connection to the shared Redis, or to the one at `url`, closed at teardown. */
export async function connectRedis (t: Owner, url = redisUrl()): Promise<Redis> {
  const redis = new Redis(url, { lazyConnect: true })
  t.teardown(() => redis.disconnect())
  // Without a listener ioredis prints each reconnect failure that a test causes on purpose.
  redis.on('error', () => {})
  await redis.connect()
  return redis
}

/** The keys that exist under `prefix`, sorted. */
export async function keysUnder (redis: Redis, prefix: string): Promise<string[]> {
  const keys = new Set<string>()
  for await (const page of redis.scanStream({ match: `${escapeGlob(prefix)}*`, count: 1000 })) {
    for (const key of page as string[]) keys.add(key)
  }
  return [...keys].sort()
}

async function deleteKeys (prefix: string): Promise<void> {
  const redis = new Redis(redisUrl(), { maxRetriesPerRequest: 1 })
  try {
    const keys = await keysUnder(redis, prefix)
    while (keys.length > 0) await redis.unlink(keys.splice(0, 1000))
  } finally {
    redis.disconnect()
  }
}

function escapeGlob (text: string): string {
  return text.replace(/[*?[\]\\]/g, '\\$&')
}
