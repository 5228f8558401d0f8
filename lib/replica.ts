import { setTimeout as sleep } from 'node:timers/promises'
import type { Cluster, Redis } from 'ioredis'
import { LogAway } from './errors.ts'
import type { Keys } from './log/keys.ts'
import type { RedisClient } from './log/redis-log.ts'

/** What a message on the channel means is in its first word; the rest is its body. */
export type Handler = (body: string) => void

/** This process among its peers: one channel of its own and one that all share. */
export interface Replica {
  /** Random per boot. */
  readonly id: string
  /** Registers the handler of one kind of message. */
  on (kind: string, handler: Handler): void
  /** Sends to one replica. @returns whether anybody listens there. */
  send (replica: string, kind: string, body: string): Promise<boolean>
  announce (kind: string, body: string): Promise<void>
  /**
   * Sends to one replica until it has acknowledged; its handler runs once.
   *
   * @returns false when that replica is gone, or no acknowledgement came in time
   * @throws LogAway when Redis was away all the time
   */
  deliver (replica: string, kind: string, body: string): Promise<boolean>
  close (): Promise<void>
}

export interface RedisReplicaOptions {
  readonly id: string
  readonly redis: RedisClient
  readonly keys: Keys
  /** Messages may have been missed: the subscription was down for a while. */
  readonly onReconnect: () => void
  /** A message that is none of ours, or whose handler threw. */
  readonly onMalformed: (error: Error) => void
}

const QUIT_MS = 1000
const ECHO_MS = 2000
/** A subscription that has not carried our own echo for this long is dead, whatever its socket says. */
const DEAF_MS = 3 * ECHO_MS
const DELIVER_MS = 10_000
const TRY_MS = 300
const REMEMBERED = 1000
const LONGEST_RETRY_MS = 2000

/** Two channels on one subscribed connection of our own; what is sent goes through the host's client. */
export class RedisReplica implements Replica {
  readonly id: string
  readonly #redis: RedisClient
  readonly #keys: Keys
  readonly #subscriber: RedisClient
  readonly #handlers = new Map<string, Handler>()
  readonly #unacknowledged = new Map<string, () => void>()
  /** Deliveries taken lately, so that a repeated one is only acknowledged again. */
  readonly #taken = new Set<string>()
  #deliveries = 0
  #heard = performance.now()
  readonly #timer: NodeJS.Timeout

  constructor ({ id, redis, keys, onReconnect, onMalformed }: RedisReplicaOptions) {
    this.id = id
    this.#redis = redis
    this.#keys = keys
    const patient = {
      maxRetriesPerRequest: null,
      autoResubscribe: false,
      retryStrategy: (times: number) => Math.min(times * 50, LONGEST_RETRY_MS)
    }
    // A cluster takes other options than a single server; its defaults reconnect.
    this.#subscriber = redis.isCluster ? (redis as Cluster).duplicate() : (redis as Redis).duplicate({ ...patient, lazyConnect: false })
    this.#subscriber.on('error', () => { /* it reconnects; what matters is told by onReconnect */ })
    let subscribed = false
    const subscribe = (): void => {
      this.#subscriber.subscribe(keys.channel(id), keys.everyone).then(() => {
        if (subscribed) onReconnect()
        subscribed = true
      }, () => { /* the connection went again; the next 'ready' subscribes */ })
    }
    this.#subscriber.on('ready', subscribe)
    this.on('echo', () => { this.#heard = performance.now() })
    this.#timer = setInterval(() => { void this.#listen() }, ECHO_MS).unref()
    this.on('deliver', body => this.#take(body))
    this.on('ack', name => this.#unacknowledged.get(name)?.())
    this.#subscriber.on('message', (_channel: string, message: string) => {
      const space = message.indexOf(' ')
      const handler = this.#handlers.get(message.slice(0, space))
      try {
        if (handler === undefined) throw new Error(`unknown message "${message.slice(0, 40)}"`)
        handler(message.slice(space + 1))
      } catch (error) {
        onMalformed(error as Error)
      }
    })
  }

  on (kind: string, handler: Handler): void {
    this.#handlers.set(kind, handler)
  }

  async send (replica: string, kind: string, body: string): Promise<boolean> {
    return await this.#redis.publish(this.#keys.channel(replica), `${kind} ${body}`) > 0
  }

  async announce (kind: string, body: string): Promise<void> {
    await this.#redis.publish(this.#keys.everyone, `${kind} ${body}`)
  }

  async deliver (replica: string, kind: string, body: string): Promise<boolean> {
    const name = `${this.id}.${++this.#deliveries}`
    const acknowledged = new Promise<void>(resolve => this.#unacknowledged.set(name, resolve)).then(() => true)
    const deadline = performance.now() + DELIVER_MS
    let published = false
    try {
      while (performance.now() < deadline) {
        // Redis may never answer, so everything is bounded by the turn.
        const turn = sleep(TRY_MS, undefined)
        if (this.#redis.status === 'ready') {
          const heard = await Promise.race([this.send(replica, 'deliver', `${name} ${kind} ${body}`).catch(() => undefined), turn])
          published ||= heard !== undefined
          // Nobody listens: a subscription that comes back in a moment, unless the replica has gone.
          if (heard === false && await Promise.race([this.#gone(replica), turn]) === true) return false
        }
        if (await Promise.race([acknowledged, turn]) === true) return true
      }
      if (!published) throw new LogAway('no message to another replica could be sent')
      return false
    } finally {
      this.#unacknowledged.delete(name)
    }
  }

  async close (): Promise<void> {
    clearInterval(this.#timer)
    const timer = setTimeout(() => this.#subscriber.disconnect(), QUIT_MS)
    await this.#subscriber.quit().catch(() => {})
    clearTimeout(timer)
    this.#subscriber.disconnect()
  }

  /** Whether a replica's lease has ended; it may still not have, 6 s after the replica was killed. */
  async #gone (replica: string): Promise<boolean> {
    return await this.#redis.exists(this.#keys.lease(replica)).catch(() => 1) === 0
  }

  /** Liveness is measured on the way that messages take: through Redis to our own channel. */
  async #listen (): Promise<void> {
    if (this.#redis.status !== 'ready') {
      this.#heard = performance.now()
      return
    }
    if (performance.now() - this.#heard > DEAF_MS) {
      this.#heard = performance.now()
      this.#subscriber.disconnect(true)
    }
    await this.send(this.id, 'echo', '').catch(() => {})
  }

  #take (message: string): void {
    const [name, kind] = message.split(' ', 2) as [string, string]
    if (!this.#taken.has(name)) {
      const handler = this.#handlers.get(kind)
      if (handler === undefined) throw new Error(`unknown delivery "${message.slice(0, 40)}"`)
      this.#taken.add(name)
      if (this.#taken.size > REMEMBERED) this.#taken.delete(this.#taken.values().next().value!)
      handler(message.slice(name.length + kind.length + 2))
    }
    this.send(name.split('.')[0]!, 'ack', name).catch(() => { /* it is delivered again */ })
  }
}

/** A process without peers. */
export class LoneReplica implements Replica {
  readonly id: string
  readonly #handlers = new Map<string, Handler>()

  constructor (id: string) {
    this.id = id
  }

  on (kind: string, handler: Handler): void {
    this.#handlers.set(kind, handler)
  }

  async send (replica: string, kind: string, body: string): Promise<boolean> {
    if (replica !== this.id) return false
    await this.announce(kind, body)
    return true
  }

  async announce (kind: string, body: string): Promise<void> {
    this.#handlers.get(kind)?.(body)
  }

  async deliver (replica: string, kind: string, body: string): Promise<boolean> {
    return await this.send(replica, kind, body)
  }

  async close (): Promise<void> {}
}
