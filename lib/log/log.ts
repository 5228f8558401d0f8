import type { EventId } from '../event-id.ts'
import type { View } from '../resume.ts'

/** Bounds of a session's log. Oldest first, at append; the newest event always stays. */
export interface Retention {
  /** Age in ms. */
  readonly windowMs: number
  readonly maxEvents: number
  readonly maxBytes: number
}

/** What is needed to serve a session anywhere. */
export interface SessionRecord {
  /** Negotiated protocol version. */
  readonly version: string
  /** The client's `initialize` params. */
  readonly initialize: Record<string, unknown>
  /** What the server declared in its answer. */
  readonly capabilities: Record<string, unknown>
  /** Hash of the principal that opened the session; empty when the host has none. */
  readonly principal: string
  /** `notifications/initialized` has come. */
  readonly initialized: boolean
  /** Set by `logging/setLevel`. */
  readonly logLevel: string | undefined
  /** Resource URIs that the client subscribed to. */
  readonly subscriptions: readonly string[]
}

/** A change of a session's record. */
export type Change =
  | { readonly kind: 'initialized', readonly ttlMs: number }
  | { readonly kind: 'logLevel', readonly level: string }
  | { readonly kind: 'subscribe' | 'unsubscribe', readonly uri: string }

/** The request that a stream answers. */
export interface StreamRequest {
  /** The client's own JSON-RPC id. */
  readonly id: string | number
  readonly method: string
  /** Of id, method and params: the same request sent again, while it runs, joins the stream it has. */
  readonly digest: string
}

/** A connection that carries a stream, or would. */
export interface Carrier {
  readonly replica: string
  readonly connection: string
}

/**
 * One stream's state. `fence` counts the connections that have carried it: a connection whose fence is not this one
 * has lost the stream.
 */
export interface StreamState {
  readonly newest: EventId
  readonly evicted: EventId | undefined
  readonly finished: boolean
  readonly runner: string
  readonly request: StreamRequest | undefined
  readonly carrier: Carrier | undefined
  readonly fence: number
  /** Where the last connection of the stream stood: exact at detach, coarse at ticks. */
  readonly watermark: EventId
}

/** What the decision and the answer to a GET need, read at one moment. */
export interface Snapshot extends View {
  readonly session: SessionRecord
  readonly stream: StreamState | undefined
  /** The cursor that was looked up: the caller's, or the stream's watermark. */
  readonly cursor: EventId | undefined
}

/** A message to append. */
export interface NewEvent {
  readonly tag: string
  /** One line of JSON; empty for a stream's opening. */
  readonly payload: string
  /** The request's final response: the stream is finished by it. */
  readonly final: boolean
}

export interface LogEvent {
  readonly id: EventId
  /** The event before it on its stream; undefined for the opening. */
  readonly predecessor: { readonly seq: number, readonly tag: string } | undefined
  readonly payload: string
  readonly final: boolean
}

export interface Append {
  readonly stream: string
  readonly events: readonly NewEvent[]
  /** Names this append: repeated with the same token it is answered again, not done again. */
  readonly token: { readonly replica: string, readonly n: number }
  /** Opens the stream if it does not exist. */
  readonly open?: { readonly request: StreamRequest, readonly carrier: Carrier | undefined } | undefined
  /** Ends the stream although it has no final response (a cancelled request). */
  readonly finish?: boolean | undefined
  /** Refuse unless this is the stream's newest event. */
  readonly expect?: EventId | undefined
}

/** `gone`: no such session. `unknown`: no such stream. `changed`: `expect` did not hold. */
export type Refusal = 'gone' | 'unknown' | 'finished' | 'changed'

export interface Appended {
  readonly status: 'appended'
  readonly events: readonly LogEvent[]
  readonly finished: boolean
  readonly carrier: Carrier | undefined
  readonly fence: number
  /** How many events inside the retention window this append evicted for want of room. */
  readonly evictedEarly: number
}

/** The request to open a stream for has one already, and still runs. */
export interface Duplicate {
  readonly status: 'duplicate'
  readonly stream: string
}

export type AppendReply = Appended | Duplicate | { readonly status: Refusal }

/** Events of one stream after a position. */
export interface Page {
  readonly events: readonly LogEvent[]
  /** The next read may start after this number. */
  readonly scanned: number
  /** There may be more. */
  readonly more: boolean
  readonly stream: StreamState
}

export interface Attached {
  readonly fence: number
  /** The replica that runs the stream's request. */
  readonly runner: string
  /** The connection that carried the stream until now. */
  readonly previous: Carrier | undefined
  /** Takeovers of the stream within the last 10 s, this one included; 0 when nobody was displaced. */
  readonly takeovers: number
}

/**
 * A session's log: its counter, its events and what is needed to serve it, changed only in atomic steps
 * (DESIGN.md section 4). Two implementations, one contract suite.
 *
 * - Numbers are issued and logged in one step; they never go back while anyone remembers more.
 * - Nothing revives a session that is gone: every step but `create` answers `undefined` or `gone` then.
 * - Every method rejects with `LogAway` when the log cannot be reached; the fate of a write is then unknown, and
 *   repeating it is safe.
 */
export interface Log {
  /** Opens a session and its standalone stream. */
  create (sid: string, record: SessionRecord, ttlMs: number): Promise<void>
  /**
   * Reads the session, and the stream of `cursor` (`'watermark'`: the standalone stream, and its watermark as the
   * cursor). A session of another principal is as unknown as one that does not exist.
   */
  snapshot (sid: string, principal: string, cursor: EventId | 'watermark' | undefined): Promise<Snapshot | undefined>
  /** The session's record, for the host itself: nobody's principal is checked, nothing is kept alive. */
  record (sid: string): Promise<SessionRecord | undefined>
  /** A stream's state, without any effect. */
  stream (sid: string, stream: string): Promise<StreamState | undefined>
  append (sid: string, append: Append): Promise<AppendReply>
  /** Events of `stream` after `position`, from above `scanned` on, bounded by `maxBytes` of payload (at least one). */
  read (sid: string, stream: string, position: { seq: number, offset: number }, scanned: number, maxBytes: number): Promise<Page | undefined>
  /** The connection becomes the stream's carrier. */
  attach (sid: string, stream: string, carrier: Carrier): Promise<Attached | undefined>
  /** The connection is no longer the carrier, if it was, and stood at `position`. */
  detach (sid: string, stream: string, carrier: Carrier, position: EventId): Promise<void>
  /** One cheap look at a stream; keeps the session alive and, for its carrier, notes the position. */
  tick (sid: string, stream: string, carrier: Carrier, position: EventId): Promise<StreamState | undefined>
  /** Keeps sessions alive whose calls run here. */
  touch (sids: readonly string[]): Promise<void>
  /** @returns whether the session is there. */
  change (sid: string, change: Change): Promise<boolean>
  /** Ends the session: nothing of it remains. @returns whether it was there. */
  terminate (sid: string): Promise<boolean>
  /** The session has ended elsewhere: nothing that was put off is written for it. */
  forget (sid: string): void
  /** Every stream of the session that is not finished. */
  unfinished (sid: string): Promise<ReadonlyMap<string, StreamState>>
  /** IDs of the sessions that may be alive. */
  sessions (): Promise<string[]>
  /** The principal's sessions that are alive, the longest idle first. */
  sessionsOf (principal: string): Promise<string[]>
  close (): Promise<void>
}

/** What the log tells a replica of streams that its connections carry. */
export interface Hint {
  readonly sid: string
  readonly stream: string
  readonly fence: number
  /** The news itself when it is small; else just that there is some. */
  readonly events: readonly LogEvent[]
}
