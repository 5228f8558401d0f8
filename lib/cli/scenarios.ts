import { setTimeout as sleep } from 'node:timers/promises'
import { readGot, startRun } from './calls.ts'
import type { Run } from './calls.ts'
import { describeResume, follow } from './follow.ts'
import type { Plan } from './follow.ts'
import { forgeAhead } from './id-shape.ts'
import { Session } from './mcp-session.ts'
import type { Target } from './mcp-session.ts'
import { lastId } from './observation.ts'
import type { Got, Observation, ScenarioName } from './observation.ts'
import { completeRun } from './reference.ts'
import type { Reference, Whole } from './reference.ts'
import type { Frame, Stop } from './wire.ts'

/** What the scenarios work with. */
export interface Lab {
  readonly target: Target
  readonly url2?: URL
  readonly reference: Reference
  /** How many events to send in order to push an old one out; 0: do not try. */
  readonly floodEvents: number
}

/** Does something to a server and says what it saw; it judges nothing. */
export type Scenario = (lab: Lab) => Promise<Observation[]>

const GARBAGE = 'not-an-event-id'
const MIN_MISS_MS = 30
const SMALL_FLOOD = 60
const SMALL_FLOOD_MS = 2000

/** In the order they are run; the first is the one that decides whether the server resumes at all. */
export const scenarios: ReadonlyArray<readonly [ScenarioName, Scenario]> = [
  ['exact cursor', exactCursor],
  ['caught up', lab => resumeRunning(lab, 'caught up', run => run.cursor, { immediately: true })],
  ['second drop', secondDrop],
  ['half-open', halfOpen],
  ['other replica', otherReplica],
  ['finished stream', finishedStream],
  ['first event', firstEvent],
  ['older than retained', olderThanRetained],
  ['ahead of the head', lab => resumeRunning(lab, 'ahead of the head', run => forgeAhead(lab.reference.shape, run.cursor), {})],
  ['garbage', lab => resumeRunning(lab, 'garbage', () => GARBAGE, {})],
  ['other session', otherSession]
]

/** The scenarios that mean something on a stream that never finishes. */
export const standaloneScenarios: readonly ScenarioName[] =
  ['exact cursor', 'caught up', 'second drop', 'half-open', 'other replica', 'first event', 'ahead of the head']

interface Interrupted {
  readonly run: Run
  readonly before: readonly Got[]
  readonly cursor: string
  readonly owed: readonly string[]
  /** Every ID of the connection, opening frames included. */
  readonly ids: readonly string[]
}

async function exactCursor (lab: Lab): Promise<Observation[]> {
  return withInterrupted(lab, 'exact cursor', 'cut', interrupted => cutTwice(lab, 'exact cursor', interrupted))
}

async function otherReplica (lab: Lab): Promise<Observation[]> {
  const { url2 } = lab
  if (url2 === undefined) return []
  return withInterrupted(lab, 'other replica', 'cut', interrupted => cutTwice(lab, 'other replica', interrupted, url2))
}

// The second cut shows what the first hides: IDs that start anew on the resumed connection.
async function cutTwice (lab: Lab, scenario: ScenarioName, interrupted: Interrupted, url?: URL): Promise<Observation> {
  const { run, owed, cursor } = interrupted
  await sleep(missMs(lab))
  const stop = owed.length < 4 ? undefined : stopAfter(2, frames => readGot(run, frames, lab.reference.marking))
  const plan = planOf(lab, interrupted)
  const first = await follow({ ...plan, ...(url !== undefined && { url }), ...(stop !== undefined && { stop }) })
  const last = first.at(-1)
  if (last?.endedBy !== 'probe' || last.status !== 200) return observe(lab, scenario, interrupted, first)
  await sleep(missMs(lab))
  const second = await follow({ ...plan, cursor: last.heldId ?? cursor })
  return observe(lab, scenario, interrupted, [...first, ...second])
}

async function secondDrop (lab: Lab): Promise<Observation[]> {
  return withInterrupted(lab, 'second drop', 'cut', async interrupted => {
    const plan = planOf(lab, interrupted)
    const doomed = interrupted.run.session.get(plan.cursor)
    await doomed.wait(() => doomed.answered, lab.target.timeoutMs)
    doomed.cut()
    // A client that read nothing has nothing: whatever came along with the status line is lost to it.
    const lost = { ...describeResume(plan, doomed), got: [] }
    return observe(lab, 'second drop', interrupted, [lost, ...await follow(plan)])
  })
}

async function halfOpen (lab: Lab): Promise<Observation[]> {
  return withInterrupted(lab, 'half-open', 'stall', async interrupted => {
    const { run } = interrupted
    await sleep(missMs(lab))
    const resumes = await follow({ ...planOf(lab, interrupted), conflicts: 0 })
    if (resumes.at(-1)?.status === 200) {
      run.watched.unstall()
      await run.watched.wait(() => false, 100)
      const unread = readGot(run, run.watched.trace.unread, lab.reference.marking)
      return { ...observe(lab, 'half-open', interrupted, resumes), unread }
    }
    run.watched.cut()
    await sleep(missMs(lab))
    const afterClose = (await follow(planOf(lab, interrupted))).at(-1)
    return { ...observe(lab, 'half-open', interrupted, resumes), ...(afterClose !== undefined && { afterClose }) }
  })
}

async function finishedStream (lab: Lab): Promise<Observation[]> {
  return withWhole(lab, 'finished stream', async ({ run, frames, complete: trusted }, got) => {
    const cursor = lastId(frames)!
    const resumes = await follow({ ...afterwards(lab, run, got), cursor, owed: [] })
    return { ...empty(lab, 'finished stream'), expected: keys(got), trusted, before: got, resumes }
  })
}

async function firstEvent (lab: Lab): Promise<Observation[]> {
  return withWhole(lab, 'first event', async ({ run, frames, complete: trusted }, got) => {
    // Another stream in the same session: none of its messages belong here.
    if (run.carrier === 'request') await completeRun(run.session, lab.reference.call, run.carrier, lab.target.timeoutMs)
    const { cursor, before, owed } = atFirst(got, frames)
    const resumes = await follow({ ...afterwards(lab, run, got), cursor, owed })
    return { ...empty(lab, 'first event'), expected: keys(got), trusted, before, resumes }
  })
}

async function olderThanRetained (lab: Lab): Promise<Observation[]> {
  const { reference, floodEvents, target } = lab
  const scenario = 'older than retained'
  if (floodEvents === 0) return [skip(lab, scenario, 'pushing events out means many calls or long ones; --flood N allows it')]
  const flood = reference.call.flood?.(floodEvents)
  const call = flood === undefined ? reference.call : { ...reference.call, params: { ...reference.call.params, arguments: flood } }
  return inSession(lab, async session => {
    const whole = await completeRun(session, call, reference.carrier, target.timeoutMs)
    const { run, frames, complete: trusted } = whole
    const got = ownMessages(lab, whole)
    if (lastId(frames) === undefined || got.length < 2) return skip(lab, scenario, 'a longer call gave no events')
    // A call that cannot be made longer is repeated: retention is often one bound for the whole session.
    if (flood === undefined) await repeat(lab, session, got.length)
    const { cursor, before, owed } = atFirst(got, frames)
    const resumes = await follow({ ...afterwards(lab, run, got), cursor, owed })
    return { ...empty(lab, scenario), expected: keys(got), trusted, before, resumes }
  })
}

async function repeat ({ reference, target }: Lab, session: Session, eventsPerCall: number): Promise<void> {
  const end = performance.now() + SMALL_FLOOD_MS
  for (let events = eventsPerCall; events < SMALL_FLOOD && performance.now() < end; events += eventsPerCall) {
    await completeRun(session, reference.call, reference.carrier, target.timeoutMs)
  }
}

async function otherSession (lab: Lab): Promise<Observation[]> {
  const { target, reference } = lab
  const stranger = await Session.open(target)
  try {
    const { frames } = await completeRun(stranger, reference.call, reference.carrier, target.timeoutMs)
    const cursor = firstId(frames)
    return await resumeRunning(lab, 'other session', () => cursor, { foreign: true })
  } finally {
    await stranger.terminate()
  }
}

async function resumeRunning (
  lab: Lab, scenario: ScenarioName, cursorOf: (interrupted: Interrupted) => string | undefined,
  { immediately = false, foreign = false }: { immediately?: boolean, foreign?: boolean }
): Promise<Observation[]> {
  return withInterrupted(lab, scenario, 'cut', async interrupted => {
    const cursor = cursorOf(interrupted)
    if (cursor === undefined) return skip(lab, scenario, 'the IDs do not count, so none can be made up that is surely ahead')
    if (foreign && interrupted.ids.includes(cursor)) {
      return skip(lab, scenario, `the sessions use the same IDs (${cursor}), so another session's cursor looks like one of this one`)
    }
    if (!immediately) await sleep(missMs(lab))
    return observe(lab, scenario, interrupted, await follow({ ...planOf(lab, interrupted), cursor }))
  })
}

async function withInterrupted (
  lab: Lab, scenario: ScenarioName, how: Stop['how'], work: (interrupted: Interrupted) => Promise<Observation>
): Promise<Observation[]> {
  const { reference, target } = lab
  return inSession(lab, async session => {
    // About a third in: something was received, most is still to come.
    const started: Run[] = []
    const got = (frames: readonly Frame[]): Got[] => started.flatMap(run => readGot(run, frames, reference.marking))
    const stop = stopAfter(Math.floor(reference.keys.length / 3), got, how)
    const run = await startRun(session, reference.call, reference.carrier, stop)
    started.push(run)
    const { frames } = run.watched.trace
    const reached = await run.watched.wait(() => stop.when(frames), target.timeoutMs + reference.durationMs)
    const cursor = lastId(frames)
    if (!reached || cursor === undefined) return skip(lab, scenario, 'the call did not get as far as the cut')
    const before = got(frames).filter(({ key }) => key !== undefined)
    const owed = reference.keys.slice(before.length)
    if (owed.length === 0) return skip(lab, scenario, 'the call has a single event, so nothing is left to resume after a cut')
    const result = await work({ run, before, cursor, owed, ids: frames.flatMap(({ id }) => id ?? []) })
    run.watched.cut()
    run.post.cut()
    return result
  })
}

async function withWhole (
  lab: Lab, scenario: ScenarioName, work: (whole: Whole, got: readonly Got[]) => Promise<Observation>
): Promise<Observation[]> {
  const { reference, target } = lab
  return inSession(lab, async session => {
    const whole = await completeRun(session, reference.call, reference.carrier, target.timeoutMs)
    const got = ownMessages(lab, whole)
    return lastId(whole.frames) === undefined ? skip(lab, scenario, 'the call sent no IDs this time') : work(whole, got)
  })
}

async function inSession (lab: Lab, work: (session: Session) => Promise<Observation>): Promise<Observation[]> {
  const session = await Session.open(lab.target)
  try {
    return [await work(session)]
  } finally {
    await session.terminate()
  }
}

/** Stops once so many messages of the call have come and the last frame has an ID to resume from. */
function stopAfter (count: number, read: (frames: readonly Frame[]) => readonly Got[], how: Stop['how'] = 'cut'): Stop {
  return {
    how,
    when: frames => lastId(frames) !== undefined && (count === 0 || frames.at(-1)?.id !== undefined) &&
      read(frames).filter(({ key, from }) => key !== undefined && from === 'stream').length >= count
  }
}

// The client has the first frame with an ID and nothing after it: with an opening frame that is no message at all.
function atFirst (got: readonly Got[], frames: readonly Frame[]): { cursor: string, before: readonly Got[], owed: readonly string[] } {
  const cursor = firstId(frames)!
  const before = got.slice(0, got.findIndex(({ id }) => id === cursor) + 1)
  return { cursor, before, owed: keys(got.slice(before.length)) }
}

function ownMessages ({ reference }: Lab, { run, frames }: Whole): Got[] {
  return readGot(run, frames, reference.marking).filter(({ key, from }) => key !== undefined && from === 'stream')
}

function firstId (frames: readonly Frame[]): string | undefined {
  return frames.find(({ id }) => id !== undefined && id !== '')?.id
}

function keys (got: readonly Got[]): string[] {
  return got.flatMap(({ key }) => key ?? [])
}

function missMs ({ reference }: Lab): number {
  return Math.max(MIN_MISS_MS, Math.min(2.5 * reference.gapMs, 1500))
}

function basics (lab: Lab, run: Run): Omit<Plan, 'cursor' | 'owed'> {
  return { run, reference: lab.reference, timeoutMs: lab.target.timeoutMs }
}

// The run is over, so nothing can be live any more, whatever the timing of the reference says.
function afterwards (lab: Lab, run: Run, got: readonly Got[]): Omit<Plan, 'cursor' | 'owed'> {
  const marking = { ...lab.reference.marking, dueMs: new Map(keys(got).map(key => [key, 0])) }
  return { ...basics(lab, run), reference: { ...lab.reference, marking } }
}

function planOf (lab: Lab, { run, cursor, owed }: Interrupted): Plan {
  return { ...basics(lab, run), cursor, owed }
}

function observe (lab: Lab, scenario: ScenarioName, { before }: Interrupted, resumes: Observation['resumes']): Observation {
  const expected = lab.reference.keys
  // A run that already differs before the cut is no run to hold against the reference.
  const trusted = lab.reference.trusted && before.every(({ key }, i) => key === expected[i])
  return { ...empty(lab, scenario), trusted, before, resumes }
}

function skip (lab: Lab, scenario: ScenarioName, skipped: string): Observation {
  return { ...empty(lab, scenario), skipped }
}

function empty ({ reference }: Lab, scenario: ScenarioName): Observation {
  const { carrier, keys, trusted, shape } = reference
  return { scenario, carrier, trusted, shape, expected: keys, before: [], resumes: [] }
}
