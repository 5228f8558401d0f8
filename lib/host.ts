import type { Carriers } from './carriers.ts'
import type { Counters } from './counters.ts'
import { InvalidNotification } from './errors.ts'
import { STANDALONE } from './event-id.ts'
import type { Log, SessionRecord } from './log/log.ts'
import { patiently } from './log/patience.ts'
import type { Outbox } from './outbox.ts'
import { encodeJson } from './sse.ts'
import { isObject } from './session/jsonrpc.ts'
import type { Sessions } from './session/sessions.ts'

export interface SessionInfo {
  readonly sessionId: string
  readonly protocolVersion: string
  readonly clientInfo: unknown
  readonly initialized: boolean
  readonly subscriptions: readonly string[]
  /** A connection carries the standalone stream now. */
  readonly listening: boolean
  /** Events of the standalone stream above where its last connection stood, as of its last tick. */
  readonly undelivered: number
}

export interface Notification {
  readonly method: string
  readonly params?: Record<string, unknown> | undefined
}

export interface McpHostOptions {
  readonly log: Log
  readonly replica: string
  readonly carriers: Carriers
  readonly counters: Counters
  readonly outbox: Outbox
  readonly sessions: Sessions
  /** How long a broadcast waits for a log that is away, in ms. */
  readonly patienceMs: number
}

const AT_ONCE = 64

/** `app.mcp`: what the host can do with sessions, from any replica. */
export class McpHost {
  /** Random per boot. */
  readonly replicaId: string
  readonly #options: McpHostOptions

  constructor (options: McpHostOptions) {
    this.#options = options
    this.replicaId = options.replica
  }

  /** How often each thing has happened on this replica since it started. */
  get counters (): Readonly<Counters> {
    return { ...this.#options.counters }
  }

  /** SDK servers that are live on this replica, and responses that carry a stream. */
  get load (): { servers: number, connections: number } {
    return { servers: this.#options.sessions.size, connections: this.#options.carriers.size }
  }

  /**
   * Sends a notification on a session's standalone stream. It is logged for a client that is away.
   *
   * @throws InvalidNotification, SessionGone; NotAppended when it cannot be logged
   */
  async notify (sessionId: string, notification: Notification): Promise<void> {
    const payload = encodeNotification(notification)
    await this.#options.outbox.standalone(sessionId).append(payload)
  }

  /** Sends a notification to every session, once each. @returns how many it was logged for */
  async broadcast (notification: Notification): Promise<number> {
    return await this.#broadcast(notification, () => true)
  }

  /** `notifications/tools/list_changed` to every session whose server declared it. */
  async toolsChanged (): Promise<number> {
    return await this.#listChanged('tools')
  }

  /** `notifications/prompts/list_changed` to every session whose server declared it. */
  async promptsChanged (): Promise<number> {
    return await this.#listChanged('prompts')
  }

  /** `notifications/resources/list_changed` to every session whose server declared it. */
  async resourcesChanged (): Promise<number> {
    return await this.#listChanged('resources')
  }

  /** `notifications/resources/updated` to every session that subscribed to the resource. */
  async resourceUpdated (uri: string): Promise<number> {
    return await this.#broadcast({ method: 'notifications/resources/updated', params: { uri } }, ({ subscriptions }) => subscriptions.includes(uri))
  }

  /** What is known of a session, wherever it is served. */
  async session (sessionId: string): Promise<SessionInfo | undefined> {
    const { log } = this.#options
    const [record, stream] = await Promise.all([log.record(sessionId), log.stream(sessionId, STANDALONE)])
    if (record === undefined || stream === undefined) return undefined
    const { version, initialize, initialized, subscriptions } = record
    const undelivered = stream.newest.offset - stream.watermark.offset
    return {
      sessionId, protocolVersion: version, clientInfo: initialize.clientInfo, initialized, subscriptions, listening: stream.carrier !== undefined, undelivered
    }
  }

  /** IDs of the sessions of all replicas. */
  async sessions (): Promise<string[]> {
    return await this.#options.log.sessions()
  }

  /** Ends a session everywhere. @returns whether it was there */
  async terminate (sessionId: string): Promise<boolean> {
    return await this.#options.sessions.terminate(sessionId)
  }

  async #listChanged (list: 'tools' | 'prompts' | 'resources'): Promise<number> {
    return await this.#broadcast({ method: `notifications/${list}/list_changed` }, ({ capabilities }) => {
      const declared = capabilities[list]
      return isObject(declared) && declared.listChanged === true
    })
  }

  async #broadcast (notification: Notification, concerns: (record: SessionRecord) => boolean): Promise<number> {
    const { log, outbox, patienceMs } = this.#options
    const payload = encodeNotification(notification)
    const sids = await patiently(patienceMs, () => log.sessions())
    let logged = 0
    const next = async (): Promise<void> => {
      for (let sid = sids.pop(); sid !== undefined; sid = sids.pop()) {
        // Given up half-way it could only be repeated as a whole, and reach some twice.
        const record = await patiently(patienceMs, () => log.record(sid))
        if (record === undefined || !record.initialized || !concerns(record)) continue
        // A session that ends meanwhile is no failure of the others.
        await outbox.standalone(sid).append(payload).then(() => { logged++ }, () => {})
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, next))
    return logged
  }
}

function encodeNotification ({ method, params }: Notification): string {
  if (typeof method !== 'string' || (params !== undefined && !isObject(params))) {
    throw new InvalidNotification('method must be a string and params an object')
  }
  return encodeJson({ jsonrpc: '2.0', method, ...params === undefined ? {} : { params } })
}
