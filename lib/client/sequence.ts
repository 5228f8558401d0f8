import { parseEventId } from '../event-id.ts'
import { validateEventResume, validateResume } from './validate-resume.ts'
import type { ViolationKind } from './validate-resume.ts'

/**
 * What a stream's IDs allow the guard to check.
 *
 * - `exact`: this project's IDs; every hole, repeat and re-issued number shows.
 * - `integer`: first = last + 1 after a reconnect, rising within a connection (a counter that several streams share has
 *   lawful holes there).
 * - `opaque`: repeats of recent IDs, and silent resumes.
 * - `none`: no ID came yet, nothing can be checked.
 */
export type GuardLevel = 'exact' | 'integer' | 'opaque' | 'none'

/** What the stream owes next. Numbers, since their names then cost a browser nothing. */
export type Phase = typeof LIVE | typeof SILENT | typeof SIGNALLED | typeof ANNOUNCED
/** Anything that follows the last event. */
export const LIVE = 0
/** After a resume: a sign of what became of the cursor, then the event right after it. */
export const SILENT = 1
/** After a resume: the event right after the cursor. */
export const SIGNALLED = 2
/** After an announced gap: any event; the stream goes on there. */
export const ANNOUNCED = 3

/** A stream's position. */
export interface Sequence {
  /** As in this project's IDs, else the guard's own name for it. */
  name: string
  /** The last ID that was passed on, as it was on the wire: the cursor; empty before the first. */
  last: string
  phase: Phase
  /** The newest 1000 IDs that were passed on, once one was opaque. */
  seen: Set<string>
}

/** All of these are safe integers. */
const INTEGER = /^\d{1,15}$/

/**
 * Takes the next frame of the stream, or says how it breaks the sequence; then nothing changes.
 *
 * @param message whether the frame carries a message; one that only carries an ID may repeat the cursor
 */
export function accept (sequence: Sequence, id: string | undefined, message: boolean): ViolationKind | undefined {
  const { last, phase, seen } = sequence
  if (!id) return message && phase === SILENT ? 'silent' : undefined
  if (id === last && !message) {
    if (phase === SILENT) sequence.phase = SIGNALLED
    return undefined
  }
  const event = parseEventId(id)
  if (event && !last) sequence.name = event.stream
  if (last && phase !== ANNOUNCED) {
    const exact = parseEventId(last)
    if (exact || (!seen.size && INTEGER.test(id))) {
      const outcome = !exact ? validateResume(+last, +id, +last) : event ? validateEventResume(last, id) : 'rebase'
      if (phase === LIVE && outcome === 'rebase') return id === last ? 'duplicate' : 'reorder'
      if (outcome !== 'resumed' && (phase !== LIVE || exact)) return outcome
    } else if (id === last || seen.has(id)) {
      return 'duplicate'
    }
  }
  moveTo(sequence, id)
  // After a gap the client's own cursor comes first, as a re-priming frame: no event yet.
  if (event && phase === ANNOUNCED && id.includes('.')) sequence.phase = phase
  return undefined
}

/** The stream's position is this event. */
export function moveTo (sequence: Sequence, id: string): void {
  const { seen } = sequence
  sequence.last = id
  sequence.phase = LIVE
  // Once opaque, always opaque: a random ID may happen to be a number.
  if (seen.size || !(parseEventId(id) || INTEGER.test(id))) seen.add(id)
  const [oldest] = seen
  if (seen.size > 1000) seen.delete(oldest!)
}

export function levelOf ({ last, seen }: Partial<Sequence> = {}): GuardLevel {
  return !last ? 'none' : seen!.size ? 'opaque' : parseEventId(last) ? 'exact' : 'integer'
}
