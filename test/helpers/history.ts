import { sameEvent, type EventId } from '../../lib/event-id.ts'
import type { View } from '../../lib/resume.ts'

/**
 * A session's log as nobody but a test can know it: with everything that was ever in it.
 */
export interface History {
  /** What the log's present state goes back to, oldest first; events lost by a rollback are not in it. */
  readonly events: readonly EventId[]
  /** How many of these, the oldest, are evicted. */
  readonly evicted: number
  /** Every event that was ever issued, also those that a rollback lost. */
  readonly issued: readonly EventId[]
}

/** What a log in this state has to say of a cursor. */
export function viewOf ({ events, evicted }: History, cursor: EventId): View {
  const gone = events.slice(0, evicted)
  const kept = events.slice(evicted)
  const newest = events.findLast(({ stream }) => stream === cursor.stream)
  return {
    head: events.at(-1)!.seq,
    floor: kept[0]!.seq,
    stream: newest && { newest, evicted: gone.findLast(({ stream }) => stream === cursor.stream) },
    retained: kept.some(event => sameEvent(event, cursor))
  }
}

/** DESIGN.md section 5, rule by rule, on the history instead of what the log keeps of it. */
export function decideByTable ({ events, evicted }: History, cursor: EventId): string {
  const on = (list: readonly EventId[]) => list.filter(({ stream }) => stream === cursor.stream)
  const all = on(events)
  const gone = on(events.slice(0, evicted))
  const kept = on(events.slice(evicted))
  const floor = events[evicted]!.seq
  const newest = all.at(-1)
  const predecessorOf = (event: EventId | undefined) => event && all[all.indexOf(event) - 1]

  if (cursor.seq > events.at(-1)!.seq) return 'future ahead'
  const proofs = [...kept, newest, gone.at(-1), predecessorOf(kept[0])]
  if (proofs.some(event => event !== undefined && sameEvent(event, cursor))) {
    return sameEvent(cursor, newest!) ? 'resumed caught-up' : 'resumed replay'
  }
  if (newest === undefined) return 'gap expired'
  const later = kept.find(({ seq }) => seq > cursor.seq)
  const before = predecessorOf(later)
  const missed = (kept[0]?.offset ?? newest.offset + 1) - cursor.offset - 1
  if (cursor.seq >= floor || cursor.seq >= newest.seq || (before !== undefined && cursor.seq >= before.seq) || missed <= 0) return 'gap diverged'
  return `gap evicted ${missed}`
}

/** The events of the cursor's stream that come after it; undefined when the cursor is no event of this history. */
export function afterCursor ({ events, evicted }: History, cursor: EventId): { missed: EventId[], kept: EventId[] } | undefined {
  const at = events.findIndex(event => sameEvent(event, cursor))
  if (at === -1) return undefined
  const later = events.map((event, i) => ({ event, i })).filter(({ event, i }) => i > at && event.stream === cursor.stream)
  return {
    missed: later.filter(({ i }) => i < evicted).map(({ event }) => event),
    kept: later.filter(({ i }) => i >= evicted).map(({ event }) => event)
  }
}

/** Every cursor worth asking about: all events ever issued, and each with one part wrong. */
export function cursorsFor ({ events, issued }: History, streams: readonly string[]): EventId[] {
  const head = events.at(-1)!.seq
  const most = Math.max(head, ...issued.map(({ seq }) => seq)) + 2
  const cursors: EventId[] = []
  for (const event of issued) {
    cursors.push(event, { ...event, tag: 'none' }, { ...event, offset: event.offset + 1 })
    if (event.offset > 0) cursors.push({ ...event, offset: event.offset - 1 })
    for (const stream of [...streams, 'unknown0']) if (stream !== event.stream) cursors.push({ ...event, stream })
  }
  for (let seq = 1; seq <= most; seq++) {
    for (const stream of streams) cursors.push({ seq, offset: Math.floor((seq - 1) / 2), stream, tag: 'none' })
  }
  return cursors.filter(({ seq, offset }) => offset < seq)
}

/** Every word of `length` over `letters`. */
export function * words<T> (letters: readonly T[], length: number): Iterable<T[]> {
  if (length === 0) yield []
  else for (const rest of words(letters, length - 1)) for (const letter of letters) yield [...rest, letter]
}
