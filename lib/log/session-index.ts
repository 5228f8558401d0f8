import type { Keys } from './keys.ts'
import type { RedisClient } from './redis-log.ts'

export interface SessionIndexOptions {
  readonly redis: RedisClient
  readonly keys: Keys
  readonly sessionTtlMs: number
  /** Runs a command; rejects with `LogAway` when it cannot be answered. */
  readonly answer: (command: () => Promise<unknown>) => Promise<unknown>
  /** The script that notes sessions as alive. */
  readonly note: (...args: Array<string | number>) => Promise<unknown>
}

const REMEMBERED_SESSIONS = 10_000
/** An entry outlives its session, so that none is missing while the session lives. */
const MARGIN = 1.25

/**
 * Which sessions there are, until when, and whose: serves broadcasts, counts and limits, decides nothing about a session.
 * A replica notes together what was used on it since the last time.
 */
export class SessionIndex {
  readonly #options: SessionIndexOptions
  readonly #used = new Set<string>()
  /** Sessions used here: whose they are, and when they were last noted as that principal's. */
  readonly #known = new Map<string, { readonly principal: string, readonly notedAt: number }>()

  constructor (options: SessionIndexOptions) {
    this.#options = options
  }

  /** Notes a session at once: it is new, or has just come to its full time to live. */
  async add (sid: string, principal: string | undefined, ttlMs: number): Promise<void> {
    await this.#note(ttlMs, [sid])
    if (principal === undefined) return
    this.used(sid, principal)
    if (principal !== '') await this.#noteOwner(sid, principal)
  }

  used (sid: string, principal?: string): void {
    this.#used.add(sid)
    const known = this.#known.get(sid)
    this.#known.delete(sid)
    this.#known.set(sid, { principal: principal ?? known?.principal ?? '', notedAt: known?.notedAt ?? performance.now() })
    if (this.#known.size > REMEMBERED_SESSIONS) this.#known.delete(this.#known.keys().next().value!)
  }

  /** Notes what was used here. */
  async flush (): Promise<void> {
    const used = [...this.#used]
    this.#used.clear()
    if (used.length === 0) return
    const { sessionTtlMs } = this.#options
    await this.#note(sessionTtlMs, used)
    // A principal's sessions expire with him, so each of them is noted again now and then.
    const due = performance.now() - sessionTtlMs / 4
    await Promise.all(used.map(async sid => {
      const known = this.#known.get(sid)
      if (known === undefined || known.principal === '' || known.notedAt > due) return
      this.#known.set(sid, { ...known, notedAt: performance.now() })
      await this.#noteOwner(sid, known.principal)
    }))
  }

  /** The session is gone: it is noted no more. */
  forget (sid: string): void {
    this.#used.delete(sid)
    this.#known.delete(sid)
  }

  /** The session is gone: what was noted of it goes too. */
  async remove (sid: string, principal: string): Promise<void> {
    const { redis, keys, answer } = this.#options
    this.forget(sid)
    await answer(() => redis.zrem(keys.sessions, sid))
    if (principal !== '') await answer(() => redis.zrem(keys.principal(principal), sid))
  }

  async sessions (): Promise<string[]> {
    const { redis, keys, answer } = this.#options
    return await answer(() => redis.zrange(keys.sessions, '0', '-1')) as string[]
  }

  /** The principal's sessions that are alive, the longest idle first. */
  async sessionsOf (principal: string): Promise<string[]> {
    const { redis, keys, answer } = this.#options
    const key = keys.principal(principal)
    const sids = await answer(() => redis.zrange(key, '0', '-1')) as string[]
    if (sids.length === 0) return []
    const there = await Promise.all(sids.map(async sid => Number(await answer(() => redis.exists(keys.session(sid)[0]))) === 1))
    const gone = sids.filter((_, i) => !there[i])
    if (gone.length > 0) await answer(() => redis.zrem(key, ...gone))
    const until = await answer(() => redis.zmscore(keys.sessions, ...sids)) as Array<string | null>
    return sids.map((sid, i) => ({ sid, there: there[i], until: Number(until[i] ?? 0) })).filter(({ there }) => there)
      .sort((a, b) => a.until - b.until).map(({ sid }) => sid)
  }

  async #note (ttlMs: number, sids: readonly string[]): Promise<void> {
    const { keys, answer, note } = this.#options
    await answer(() => note(1, keys.sessions, Math.ceil(ttlMs * MARGIN), ...sids))
  }

  async #noteOwner (sid: string, principal: string): Promise<void> {
    const { redis, keys, sessionTtlMs, answer } = this.#options
    const key = keys.principal(principal)
    await answer(() => redis.multi().zadd(key, Date.now(), sid).pexpire(key, Math.ceil(sessionTtlMs * MARGIN)).exec())
  }
}
