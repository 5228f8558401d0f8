import { formatEventId, sameEvent, type EventId } from './event-id.ts'

/** What the log knows of one stream, as far as the decision needs it. */
export interface StreamView {
  readonly newest: EventId
  /** The stream's newest event that is no longer retained. */
  readonly evicted: EventId | undefined
}

/** The log as one round trip saw it. */
export interface View {
  /** The highest number issued in the session. */
  readonly head: number
  /** The lowest number retained; head + 1 when nothing is. */
  readonly floor: number
  readonly stream: StreamView | undefined
  /** The cursor names, in all four parts, an event that is retained. */
  readonly retained: boolean
}

/** Where delivery starts: right after this event or, when only a number is known, at the first event above it. */
export type Start = EventId | { readonly seq: number }

export type Decision =
  | { readonly outcome: 'resumed', readonly cause: 'replay' | 'caught-up', readonly start: EventId }
  | { readonly outcome: 'gap', readonly cause: 'evicted', readonly missed: number, readonly start: EventId }
  | { readonly outcome: 'gap', readonly cause: 'diverged', readonly start: Start }
  | { readonly outcome: 'gap', readonly cause: 'expired', readonly start: undefined }
  | { readonly outcome: 'future', readonly cause: 'ahead', readonly start: EventId | undefined }

/**
 * Decides what a cursor means for a log (DESIGN.md section 5): the first rule that matches wins, every cursor has
 * exactly one outcome, and `resumed` is only said of a position that is proven to be one of this log.
 *
 * The stream's newest evicted event stands for two of the design's terms: it is the predecessor that the first retained
 * event names, and its offset + 1 is that event's offset.
 */
export function decideResume (cursor: EventId, view: View): Decision {
  const { head, floor, stream, retained } = view
  if (cursor.seq > head) return { outcome: 'future', cause: 'ahead', start: stream?.newest }
  if (stream === undefined) return { outcome: 'gap', cause: 'expired', start: undefined }
  const { newest, evicted } = stream
  if (sameEvent(cursor, newest)) return { outcome: 'resumed', cause: 'caught-up', start: cursor }
  if (retained || (evicted !== undefined && sameEvent(cursor, evicted))) {
    return { outcome: 'resumed', cause: 'replay', start: cursor }
  }
  const missed = (evicted?.offset ?? -1) - cursor.offset
  if (evicted === undefined || missed <= 0 || cursor.seq >= Math.min(floor, newest.seq, evicted.seq)) {
    return { outcome: 'gap', cause: 'diverged', start: cursor.seq >= newest.seq ? newest : { seq: cursor.seq } }
  }
  return { outcome: 'gap', cause: 'evicted', missed, start: evicted }
}

/** How many events a decision leaves to replay, where that is known. */
export function replayCount (decision: Decision, view: View): number | undefined {
  const { start } = decision
  if (start === undefined || view.stream === undefined || !('offset' in start)) return undefined
  return view.stream.newest.offset - start.offset
}

/**
 * The value of the `Mcp-Resume` response header, a structured field item (RFC 9651): the outcome with its cause, how
 * many events are missed, how many are replayed, and the stream's newest event.
 */
export function formatOutcome (decision: Decision, view: View): string {
  const parts: string[] = [decision.outcome, `cause=${decision.cause}`]
  if (decision.cause === 'evicted') parts.push(`missed=${decision.missed}`)
  const replay = replayCount(decision, view)
  if (replay !== undefined) parts.push(`replay=${replay}`)
  if (view.stream !== undefined) parts.push(`head="${formatEventId(view.stream.newest)}"`)
  return parts.join(';')
}
