import type { Observation, ScenarioName } from './observation.ts'
import type { Judgement } from './verdict.ts'

/** One scenario with its verdict. */
export interface Judged {
  readonly seen: Observation
  readonly judgement: Judgement
}

interface Rule {
  readonly cause: string
  /** Whether this is why that scenario failed; the other failures on the same stream say more than it does alone. */
  explains (one: Judged, failures: readonly Judged[]): boolean
}

const REAL: readonly ScenarioName[] = ['exact cursor', 'caught up', 'second drop', 'half-open', 'other replica', 'busy stream']
const UNKNOWN: readonly ScenarioName[] = ['ahead of the head', 'garbage', 'other session']

/** For each failure the first rule that explains it counts, so the most specific comes first. */
const RULES: readonly Rule[] = [
  {
    cause: 'The replay looks events up by ID in a store that all sessions share, without checking whose they are: one client is served another client\'s messages.',
    explains: one => one.judgement.verdict === 'leak'
  },
  {
    cause: 'A per-connection counter with a session-wide buffer: every new connection numbers its events from the start again, while the replay buffer ' +
      'belongs to the session. After a reconnect the client\'s cursor is compared with a sequence it does not come from, and the server replays too much or too little without an error.',
    explains: (_, failures) => failures.some(({ seen, judgement }) => judgement.verdict === 'rebase' && is(seen, REAL))
  },
  {
    cause: 'Event IDs are counted per stream, not per session: the same ID names events of several streams, so a cursor does not say which stream it resumes.',
    explains: one => one.judgement.reusedIds.length > 0
  },
  {
    cause: 'The replay selects by position alone and not by stream: it pours the events of other streams of the session into the resumed one.',
    explains: one => one.judgement.strays.length > 0
  },
  {
    cause: 'The cursor is not used: every resume replays the buffer from its start.',
    explains: (one, failures) => one.judgement.repeated.length > 0 && failures.some(({ seen, judgement }) => is(seen, REAL) && gotAllAgain(seen, judgement))
  },
  {
    cause: 'A resumed connection is ended at once with 200 although messages are owed: the server finds nothing to replay and does not attach the connection to the stream.',
    explains: (one, failures) => one.judgement.verdict === 'reconnect loop' &&
      failures.some(({ seen, judgement }) => judgement.verdict === 'reconnect loop' && is(seen, REAL))
  },
  {
    cause: 'The replay is not joined to the running call: what was stored comes, but live messages still go to the connection that is gone.',
    explains: (one, failures) => one.judgement.verdict === 'hang' && is(one.seen, REAL) && !cameLive(one) &&
      failures.some(other => other.judgement.verdict === 'hang' && cameAtAll(other) && !cameLive(other))
  },
  {
    cause: 'The cursor is not found, and the connection waits on a stream that nobody writes to: even an exact cursor gets nothing.',
    explains: (one, failures) => one.judgement.verdict === 'hang' && !cameAtAll(one) &&
      failures.some(other => other.judgement.verdict === 'hang' && is(other.seen, REAL) && !cameAtAll(other))
  },
  {
    cause: 'Replayed events are sorted by something that does not order them, such as a clock and a random part.',
    explains: (one, failures) => (one.judgement.verdict === 'out of order' || is(one.seen, [...REAL, 'finished stream'])) &&
      failures.some(({ judgement }) => judgement.verdict === 'out of order')
  },
  {
    cause: 'Nothing is stored while no client is connected: what was sent between the cut and the resume is lost, and the stream goes on as if nothing had happened.',
    explains: (one, failures) => one.judgement.verdict === 'silent gap' && is(one.seen, REAL) &&
      failures.some(other => other.seen.scenario === 'exact cursor' && other.judgement.verdict === 'silent gap' && lostFirst(other))
  },
  {
    cause: 'The hand-over from replay to live loses messages: one that is stored after the replay was read, and before the new connection is registered, is written to nobody.',
    explains: one => (one.judgement.verdict === 'silent gap' || one.judgement.verdict === 'hang') && is(one.seen, REAL)
  },
  {
    cause: 'Only one connection per stream is allowed, and a newer one may not take over.',
    explains: one => one.seen.scenario === 'half-open' && one.seen.resumes.some(({ status }) => status === 409)
  },
  {
    cause: 'The session, or its replay buffer, lives in the memory of one process: the other replica does not know it.',
    explains: one => one.seen.scenario === 'other replica'
  },
  {
    cause: 'The events carry IDs, but there is nothing to resume from: without an event store behind them the IDs only look like a promise.',
    explains: one => (one.judgement.verdict === 'explicit refusal' || one.judgement.verdict === 'not offered') && is(one.seen, REAL)
  },
  {
    cause: 'A cursor that is older than the buffer is clamped to the oldest retained event: what was evicted is skipped without a word.',
    explains: one => is(one.seen, ['older than retained', 'first event']) && one.judgement.missing.length > 0
  },
  {
    cause: 'A cursor that the server does not know is taken for the start of the buffer.',
    explains: one => is(one.seen, UNKNOWN) && one.judgement.repeated.length > 0
  },
  {
    cause: 'A cursor that the server does not know is treated as “nothing missed” instead of being refused.',
    explains: one => is(one.seen, UNKNOWN)
  },
  {
    cause: 'The last event of a stream is not the last one of its replay: events of the same moment are stored in no fixed order.',
    explains: one => one.seen.scenario === 'finished stream' && one.judgement.verdict === 'duplicate'
  },
  {
    cause: 'The end of a stream is not remembered: a resume of a finished one is left open.',
    explains: one => one.seen.scenario === 'finished stream' && one.judgement.verdict === 'hang'
  }
]

/** What explains the failures, the most specific first; empty when nothing failed. */
export function explain (all: readonly Judged[]): string[] {
  const failed = all.filter(({ judgement }) => judgement.sound === false)
  const places = new Map<string, number>()
  for (const one of failed) {
    const { carrier } = one.seen
    const place = RULES.findIndex(rule => rule.explains(one, failed.filter(({ seen }) => seen.carrier === carrier)))
    const rule = RULES[place]
    if (rule !== undefined) places.set(carrier === 'standalone' ? `On the standalone stream: ${rule.cause}` : rule.cause, place)
  }
  return [...places].sort(([, a], [, b]) => a - b).map(([cause]) => cause)
}

function is ({ scenario }: Observation, scenarios: readonly ScenarioName[]): boolean {
  return scenarios.includes(scenario)
}

function cameAtAll ({ seen }: Judged): boolean {
  return seen.resumes.some(({ got }) => got.length > 0)
}

function cameLive ({ seen }: Judged): boolean {
  return seen.resumes.some(({ got }) => got.some(({ live }) => live))
}

function gotAllAgain ({ before }: Observation, { repeated }: Judgement): boolean {
  return before.length > 0 && before.every(({ key }) => key !== undefined && repeated.includes(key))
}

/** The hole begins with the very first message that was owed. */
function lostFirst ({ seen: { expected, before }, judgement: { missing } }: Judged): boolean {
  return expected[before.length] === missing[0]
}
