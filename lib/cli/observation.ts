import type { IdShape } from './id-shape.ts'
import type { Signal } from './signal.ts'

/** What the probe tries; every scenario has its own session, so that one failure cannot spoil the next. */
export type ScenarioName =
  | 'unique IDs' | 'exact cursor' | 'caught up' | 'second drop' | 'half-open' | 'other replica' | 'busy stream'
  | 'finished stream' | 'first event' | 'older than retained' | 'ahead of the head' | 'garbage' | 'other session'

/** Where a call's messages come: on the response of its POST, or on the standalone stream. */
export type Carrier = 'request' | 'standalone'

/** One message as a client got it. */
export interface Got {
  /** Which message it is, the same in every run of the call; undefined for one that is not part of the sequence. */
  readonly key?: string
  readonly id?: string
  /** Whose message it is, by its request ID or progress token. */
  readonly from: 'stream' | 'other stream' | 'other session'
  readonly atMs: number
  /** It was sent after the connection was opened, by the timing of the uninterrupted run. */
  readonly live: boolean
}

/** One GET with a cursor and what came of it. */
export interface Resume {
  readonly cursor: string
  /** Undefined when not even a status line came in time. */
  readonly status?: number
  readonly contentType?: string
  readonly body?: string
  readonly error?: string
  readonly signal?: Signal
  /** A frame with an ID came before any message, so that a second drop right there loses nothing. */
  readonly primed: boolean
  readonly got: readonly Got[]
  /** The newest ID of the connection: what a client would resume from next. */
  readonly heldId?: string
  /** Undefined: still open when the probe stopped waiting. */
  readonly endedBy?: 'server' | 'probe'
  readonly openedMs: number
  /** From the request until the probe stopped waiting. */
  readonly lastedMs: number
  readonly replica?: boolean
}

/** All that one scenario saw: the input of the verdict. */
export interface Observation {
  readonly scenario: ScenarioName
  readonly carrier: Carrier
  /** Why the scenario did not come to a resume. */
  readonly skipped?: string
  /** False: the server never said that it can do this. */
  readonly offered?: false
  /** The whole stream's messages in order, as an uninterrupted run showed them. */
  readonly expected: readonly string[]
  /** Two uninterrupted runs agreed, or this very run was uninterrupted: `expected` is what has to come. */
  readonly trusted: boolean
  readonly shape: IdShape
  /** What the client had processed when it resumed. */
  readonly before: readonly Got[]
  /** GETs in the order they were made. */
  readonly resumes: readonly Resume[]
  /** Half-open only: the resume once the old connection was really closed, when it was refused before. */
  readonly afterClose?: Resume
  /** Half-open only: what the old connection was sent and nobody read. */
  readonly unread?: readonly Got[]
  /** IDs of one session per stream, for `unique IDs`. */
  readonly streams?: ReadonlyArray<readonly Got[]>
}

/** The last ID that names a message or primes the stream, as a client would send it back. */
export function lastId (got: ReadonlyArray<{ readonly id?: string }>): string | undefined {
  return got.findLast(({ id }) => id !== undefined && id !== '')?.id
}
