import { setTimeout as sleep } from 'node:timers/promises'
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
/**
 * A lease has 4 s left when its next renewal is due. Whoever has had an answer within the last 3 s has seen no stall that
 * could have let one expire that its replica wants to keep.
 */
const STALL_MS = 3000
const CLOSE_MS = 1000

/** A key per replica that lives as long as it is renewed. */
export class RedisLease implements Lease {
  readonly #redis: RedisClient
  readonly #keys: Keys
  readonly #replica: string
  readonly #timer: NodeJS.Timeout
  /** Since when the lease has been held without a break, on the monotonic clock. */
  #heldSince = Infinity
  /** When Redis last answered a renewal. */
  #answered = -Infinity
  #renewing = false
  #closed = false

  constructor ({ redis, keys, replica }: { redis: RedisClient, keys: Keys, replica: string }) {
    this.#redis = redis
    this.#keys = keys
    this.#replica = replica
    this.#timer = setInterval(this.#renew, RENEW_MS).unref()
    redis.on('ready', this.#renew)
    this.#renew()
  }

  async dead (replicas: readonly string[]): Promise<Set<string>> {
    if (!this.#mayJudge()) return new Set()
    const alive = await Promise.all(replicas.map(replica => this.#redis.exists(this.#keys.lease(replica))))
    // Asked before a stall and answered after it, when every lease has expired.
    return this.#mayJudge() ? new Set(replicas.filter((_, i) => Number(alive[i]) === 0)) : new Set()
  }

  async close (): Promise<void> {
    this.#closed = true
    clearInterval(this.#timer)
    this.#redis.off('ready', this.#renew)
    if (this.#redis.status !== 'ready') return
    // A Redis that stands still must not hold the process; the lease then ends by itself.
    await Promise.race([this.#redis.del(this.#keys.lease(this.#replica)).catch(() => {}), sleep(CLOSE_MS, undefined, { ref: false })])
  }

  #mayJudge (): boolean {
    const now = performance.now()
    return now - this.#heldSince >= LEASE_MS && now - this.#answered <= STALL_MS
  }

  readonly #renew = (): void => {
    if (this.#renewing || this.#closed || this.#redis.status !== 'ready') return
    this.#renewing = true
    // Bounded, since a promise of ioredis may never settle.
    Promise.race([this.#keep(), sleep(LEASE_MS, undefined, { ref: false })]).catch(() => {
      // Tried again at the next turn; until then the time since the last answer tells.
    }).finally(() => { this.#renewing = false })
  }

  async #keep (): Promise<void> {
    const key = this.#keys.lease(this.#replica)
    const kept = await this.#redis.set(key, '1', 'PX', LEASE_MS, 'XX') !== null
    if (this.#closed) return
    if (!kept) await this.#redis.set(key, '1', 'PX', LEASE_MS)
    const now = performance.now()
    if (!kept || now - this.#answered > STALL_MS) this.#heldSince = now
    this.#answered = now
  }
}

/** A process without peers judges nobody. */
export class LoneLease implements Lease {
  async dead (): Promise<Set<string>> {
    return new Set()
  }

  async close (): Promise<void> {}
}
