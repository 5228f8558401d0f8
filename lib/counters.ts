const NAMES = [
  /** Outcomes of GETs with a cursor. */
  'resumed', 'gap', 'future',
  /** Requests that found the log away for as long as they could wait. */
  'away',
  /** Requests settled because nobody ran them any more. */
  'lost',
  /** Messages that could not be logged, and were not sent. */
  'dropped',
  /** Streams given up because too much waited for the log. */
  'overflowed',
  /** Events evicted inside the retention window for want of room. */
  'evictedEarly',
  /** Answers to server requests that nobody waited for. */
  'unclaimedAnswers',
  /** Messages on the bus that were not understood. */
  'malformedMessages'
] as const

export type Counter = typeof NAMES[number]

/** How often each thing has happened on this replica since it started. */
export type Counters = Record<Counter, number>

export function newCounters (): Counters {
  return Object.fromEntries(NAMES.map(name => [name, 0])) as Counters
}
