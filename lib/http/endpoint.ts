import { createHash } from 'node:crypto'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Counters } from '../counters.ts'
import { LogAway, RpcCode } from '../errors.ts'
import type { EventId } from '../event-id.ts'
import type { Log, Snapshot } from '../log/log.ts'
import { patiently } from '../log/patience.ts'
import type { Config } from '../options.ts'
import { rpcError, type RpcRequest } from '../session/jsonrpc.ts'
import type { Inbox } from '../session/inbox.ts'
import { isSessionId, type Sessions } from '../session/sessions.ts'
import { Refusal } from './refusal.ts'
import type { Streams } from './streams.ts'

export interface EndpointOptions {
  readonly config: Config
  readonly log: Log
  readonly sessions: Sessions
  readonly inbox: Inbox
  readonly streams: Streams
  readonly counters: Counters
}

const RETRY_AFTER_S = 2

/** What the methods of the endpoint share: its parts, the look-up of a session, and the answer when the log is away. */
export class Endpoint {
  readonly config: Config
  readonly log: Log
  readonly sessions: Sessions
  readonly inbox: Inbox
  readonly streams: Streams
  readonly counters: Counters

  constructor ({ config, log, sessions, inbox, streams, counters }: EndpointOptions) {
    this.config = config
    this.log = log
    this.sessions = sessions
    this.inbox = inbox
    this.streams = streams
    this.counters = counters
  }

  /**
   * The session as this caller may see it: undefined when it is unknown or another principal's.
   *
   * @throws LogAway when the log is still away after `patienceMs`
   */
  async snapshot (request: FastifyRequest, sid: string, cursor: EventId | 'watermark' | undefined): Promise<Snapshot | undefined> {
    if (!isSessionId(sid)) return undefined
    const principal = this.principal(request)
    return await patiently(this.config.patienceMs, () => this.log.snapshot(sid, principal, cursor))
  }

  /** Hashed: what the host knows of a caller becomes no key and no text in the log. */
  principal (request: FastifyRequest): string {
    const principal = this.config.principal(request)
    return principal === undefined ? '' : createHash('sha256').update(principal).digest('base64url')
  }

  /**
   * The answer when the log stayed away. A 503 kills some clients when it answers a request, so only what has no id
   * gets it.
   *
   * @throws error again when it is another one
   */
  async away (reply: FastifyReply, asked: readonly RpcRequest[], batch: boolean, error: unknown): Promise<FastifyReply> {
    if (!(error instanceof LogAway)) throw error
    this.counters.away++
    const text = 'The session log cannot be reached; nothing was started. Try again later.'
    const errors = asked.map(({ id }) => rpcError(id, RpcCode.away, text, { retryAfter: RETRY_AFTER_S }))
    if (errors.length > 0) return await reply.code(200).type('application/json').send(batch ? errors : errors[0])
    reply.header('retry-after', RETRY_AFTER_S)
    return await new Refusal(503, RpcCode.away, text).send(reply)
  }
}
