import { parseEventId } from '../event-id.ts'

/**
 * How an expected sequence was broken.
 *
 * - `gap`: events are missing and nobody said so.
 * - `rebase`: after a reconnect the numbering started again, a number was issued to another event, or it is another
 *   stream's numbering.
 * - `silent`: a resume was answered with neither a replay nor a signal.
 * - `duplicate`: the last event came again.
 * - `reorder`: within one connection an event came that does not follow the last one: late, again, or numbered anew.
 */
export type ViolationKind = 'gap' | 'rebase' | 'silent' | 'duplicate' | 'reorder'

/** What the first event after a reconnect proves about the events in between. */
export type ResumeOutcome = 'resumed' | 'gap' | 'rebase'

/** The event sequence of a stream is broken: what was received does not continue what was processed. */
export class ResumeSequenceError extends Error {
  declare readonly code: 'MCP_RESUME_ERR_SEQUENCE'
  declare readonly kind: ViolationKind
  /** The last event that was processed: an integer or an event ID. */
  declare readonly last: number | string | undefined
  /** What came instead of its successor; undefined when nothing came, or a message without an ID. */
  declare readonly received: number | string | undefined
  /** The oldest event that the server still has, where that was known. */
  declare readonly floor: number | undefined
  /** The stream, as in an event ID; of servers with other IDs the guard's own name for it. */
  declare readonly stream: string | undefined

  constructor (
    kind: ViolationKind, last?: number | string, received?: number | string, floor?: number, stream?: string
  ) {
    super(`${kind}: ${received} came after ${last}`)
    const name = 'ResumeSequenceError'
    Object.assign(this, { name, code: 'MCP_RESUME_ERR_SEQUENCE', kind, last, received, floor, stream })
  }
}

/**
 * Judges the first integer ID after a reconnect.
 *
 * @param lastProcessed the ID that was sent as `Last-Event-ID`
 * @param firstReceived the first ID that came back
 * @param bufferFloor the oldest ID that the server still has
 * @returns `resumed` if first = last + 1, `gap` if it is greater, `rebase` if it is not greater than the last
 * @throws ResumeSequenceError (`gap`) if events are missing and `lastProcessed` is older than the floor: the server
 * cannot deliver them any more
 * @throws TypeError unless all three are safe integers
 */
export function validateResume (lastProcessed: number, firstReceived: number, bufferFloor: number): ResumeOutcome {
  const numbers = [lastProcessed, firstReceived, bufferFloor]
  if (!numbers.every(Number.isSafeInteger)) throw TypeError(`not safe integers: ${numbers}`)
  if (firstReceived <= lastProcessed) return 'rebase'
  if (firstReceived - lastProcessed === 1) return 'resumed'
  if (lastProcessed >= bufferFloor) return 'gap'
  throw new ResumeSequenceError('gap', lastProcessed, firstReceived, bufferFloor)
}

/**
 * The rules of {@link validateResume} for the event IDs of this project: the offsets of one stream take the integers'
 * place; another stream, or a number that was issued again, is a `rebase`; the re-priming frame (the last ID with a
 * suffix) is `resumed`.
 *
 * @param offsetFloor the oldest offset of this stream that the server still has; default 0: nothing is known to be gone
 * @throws ResumeSequenceError (`gap`, with offsets) as {@link validateResume}
 * @throws TypeError if an ID is malformed or the floor no safe integer
 */
export function validateEventResume (lastProcessed: string, firstReceived: string, offsetFloor = 0): ResumeOutcome {
  const last = parseEventId(lastProcessed)
  const first = parseEventId(firstReceived)
  if (!last || !first) throw TypeError('no event ID')
  // IDs are canonical but for the suffix.
  if (firstReceived.startsWith(`${lastProcessed.split('.')[0]}.`)) return 'resumed'
  // The session's counter rises at least as fast as any stream's, else the numbers were issued a second time.
  const reissued = first.seq - last.seq < first.offset - last.offset
  if (reissued || first.stream !== last.stream) return 'rebase'
  return validateResume(last.offset, first.offset, offsetFloor)
}

/**
 * Throws unless the stream was resumed without a hole: the caller must re-synchronise before it reads on. Takes integers
 * or this project's event IDs.
 *
 * @param floor as in {@link validateResume} or {@link validateEventResume}; default 0
 * @throws ResumeSequenceError with kind `gap` or `rebase`
 * @throws TypeError for invalid arguments
 */
export function onReconnect<Id extends number | string> (lastProcessed: Id, firstReceived: Id, floor = 0): void {
  const outcome = typeof lastProcessed === 'string'
    ? validateEventResume(lastProcessed, firstReceived as string, floor)
    : validateResume(lastProcessed, firstReceived as number, floor)
  if (outcome !== 'resumed') throw new ResumeSequenceError(outcome, lastProcessed, firstReceived, floor)
}
