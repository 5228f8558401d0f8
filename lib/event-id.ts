/**
 * One event's place in a session (DESIGN.md section 3), e.g. `47-12-1-k3f9`.
 *
 * `seq` counts the session's events over all streams and replicas; `offset` counts those of one stream, so "nothing is
 * missing" is an exact test; `stream` is `1` for the standalone stream, else 8 random characters; `tag` binds the ID to
 * *that* event. Example of why four parts: a failover loses the acknowledged events 48 and 49, and two others are
 * logged under these numbers. A client that holds `49-13-1-k3f9` must not be told "resumed" because some event 49
 * exists; its tag differs from the new one's.
 */
export interface EventId {
  readonly seq: number
  readonly offset: number
  readonly stream: string
  readonly tag: string
}

/** The stream that a GET without a cursor listens to. */
export const STANDALONE = '1'

const MAX_LENGTH = 64
const SHAPE = /^([1-9][0-9]{0,15})-(0|[1-9][0-9]{0,15})-(1|[0-9a-z]{8})-([0-9a-z]{4})(?:\.[0-9a-z]{2,4})?$/

/**
 * Reads an event ID strictly: canonical decimals up to 2^53 - 1, offset below seq, at most 64 characters, and an
 * optional suffix (`.` and 2 to 4 characters) that is ignored.
 *
 * @returns undefined for anything else: the cursor is malformed and needs no look-up.
 */
export function parseEventId (text: string): EventId | undefined {
  if (text.length > MAX_LENGTH) return undefined
  const match = SHAPE.exec(text)
  if (match === null) return undefined
  const seq = Number(match[1])
  const offset = Number(match[2])
  if (!Number.isSafeInteger(seq) || offset >= seq) return undefined
  return { seq, offset, stream: match[3]!, tag: match[4]! }
}

export function formatEventId (id: EventId): string {
  return `${id.seq}-${id.offset}-${id.stream}-${id.tag}`
}

/** All four parts agree: both name the same event. */
export function sameEvent (a: EventId, b: EventId): boolean {
  return a.seq === b.seq && a.offset === b.offset && a.stream === b.stream && a.tag === b.tag
}
