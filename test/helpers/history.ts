import { formatEventId, sameEvent, type EventId } from '../../lib/event-id.ts'
import type { Decision, View } from '../../lib/resume.ts'

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

/** What a client receives when delivery starts where the decision says: the retained events of its stream from there on. */
export function deliveredBy ({ events, evicted }: History, cursor: EventId, { start }: Decision): EventId[] {
  return events.slice(evicted).filter(({ stream, seq }) => stream === cursor.stream && start !== undefined && seq > start.seq)
}

/** What is wrong with a decision and the events that followed it, by what only the history knows. */
export function judge (history: History, cursor: EventId, decision: Decision, delivered: readonly EventId[]): string | undefined {
  const { outcome, cause } = decision
  const told = cause === 'evicted' ? `gap evicted ${decision.missed}` : `${outcome} ${cause}`
  if (told !== decideByTable(history, cursor)) return `the table says "${decideByTable(history, cursor)}"`
  const truth = afterCursor(history, cursor)
  if (truth === undefined) {
    if (outcome === 'resumed') return 'resumed, but it is no event of this log'
    if ((cursor.seq > history.events.at(-1)!.seq) !== (outcome === 'future')) return 'ahead of the log is future, and nothing else is'
    const above = history.events.slice(history.evicted).filter(({ stream, seq }) => stream === cursor.stream && seq > cursor.seq)
    return above.every(event => delivered.some(other => sameEvent(other, event))) ? undefined : 'not all that is retained above the cursor is delivered'
  }
  if (!sameEvents(delivered, truth.kept)) return 'delivered are not the events after the cursor'
  if (truth.missed.length === 0) return outcome === 'resumed' ? undefined : 'a gap, but nothing is missing'
  if (outcome === 'resumed') return 'resumed with a hole'
  return cause === 'evicted' && decision.missed === truth.missed.length ? undefined : `${truth.missed.length} are missing`
}

export function sameEvents (a: readonly EventId[], b: readonly EventId[]): boolean {
  return a.length === b.length && a.every((event, i) => sameEvent(event, b[i]!))
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
  return [...new Map(cursors.filter(({ seq, offset }) => offset < seq).map(cursor => [formatEventId(cursor), cursor])).values()]
}

/** Every word of `length` over `letters`. */
export function * words<T> (letters: readonly T[], length: number): Iterable<T[]> {
  if (length === 0) yield []
  else for (const rest of words(letters, length - 1)) for (const letter of letters) yield [...rest, letter]
}
