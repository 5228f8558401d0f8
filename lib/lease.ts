import type { Keys } from './log/keys.ts'
import type { RedisClient } from './log/redis-log.ts'

/** Who of the replicas is alive. */
export interface Lease {
  /**
   * Which of these replicas are known to be dead. None while this replica's own lease has not been unbroken for a whole
   * lease period: a Redis stall makes everybody look dead.
   */
  dead (replicas: readonly string[]): Promise<Set<string>>
  /** Gives the lease up: the process is about to end. */
  close (): Promise<void>
}

export const LEASE_MS = 6000
const RENEW_MS = 2000

/** A key per replica that lives as long as it is renewed. */
export class RedisLease implements Lease {
  readonly #redis: RedisClient
  readonly #keys: Keys
  readonly #replica: string
  readonly #timer: NodeJS.Timeout
  /** Since when the lease has been held without a break, on the monotonic clock. */
  #heldSince: number | undefined
  #renewed = -Infinity
  #renewing = false
  #closed = false

  constructor ({ redis, keys, replica }: { redis: RedisClient, keys: Keys, replica: string }) {
    this.#redis = redis
    this.#keys = keys
    this.#replica = replica
    this.#timer = setInterval(() => { void this.#renew() }, RENEW_MS).unref()
    redis.on('ready', () => { void this.#renew() })
    void this.#renew()
  }

  async dead (replicas: readonly string[]): Promise<Set<string>> {
    const at = performance.now()
    if (this.#heldSince === undefined || at - this.#heldSince < LEASE_MS || at - this.#renewed > LEASE_MS) return new Set()
    const alive = await Promise.all(replicas.map(replica => this.#redis.exists(this.#keys.lease(replica))))
    return new Set(replicas.filter((_, i) => Number(alive[i]) === 0))
  }

  async close (): Promise<void> {
    this.#closed = true
    clearInterval(this.#timer)
    if (this.#redis.status === 'ready') await this.#redis.del(this.#keys.lease(this.#replica)).catch(() => {})
  }

  async #renew (): Promise<void> {
    if (this.#renewing || this.#closed || this.#redis.status !== 'ready') return
    this.#renewing = true
    const at = performance.now()
    const key = this.#keys.lease(this.#replica)
    try {
      const kept = await this.#redis.set(key, '1', 'PX', LEASE_MS, 'XX') !== null
      if (!kept) await this.#redis.set(key, '1', 'PX', LEASE_MS)
      // Longer than a lease since the last renewal (a stall, or the process was stopped): it was broken.
      if (!kept || at - this.#renewed > LEASE_MS) this.#heldSince = at
      this.#renewed = at
    } catch {
      // Tried again at the next turn; until then the time since the last renewal tells.
    } finally {
      this.#renewing = false
    }
  }
}

/** A process without peers judges nobody. */
export class LoneLease implements Lease {
  async dead (): Promise<Set<string>> {
    return new Set()
  }

  async close (): Promise<void> {}
}
