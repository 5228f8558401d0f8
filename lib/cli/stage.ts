import { setTimeout as sleep } from 'node:timers/promises'
import { readGot, startRun } from './calls.ts'
import type { Call, Run } from './calls.ts'
import type { Plan } from './follow.ts'
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

/** A call that was cut, or left unread, about a third in. */
export interface Interrupted {
  readonly run: Run
  readonly before: readonly Got[]
  readonly cursor: string
  readonly owed: readonly string[]
  /** Every ID of the connection, opening frames included. */
  readonly ids: readonly string[]
}

const MIN_MISS_MS = 30
const MAX_MISS_MS = 1500

/** Starts the call in a session of its own, interrupts it and hands it on. */
export async function withInterrupted (
  lab: Lab, scenario: ScenarioName, how: Stop['how'], work: (interrupted: Interrupted) => Promise<Observation>
): Promise<Observation[]> {
  const { reference, target } = lab
  return inSession(lab, async session => {
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

/** Runs a call to its end in a session of its own; its own messages are then the truth. */
export async function withWhole (
  lab: Lab, scenario: ScenarioName, work: (whole: Whole, got: readonly Got[]) => Promise<Observation>, call: Call = lab.reference.call
): Promise<Observation[]> {
  const { reference, target } = lab
  return inSession(lab, async session => {
    const whole = await completeRun(session, call, reference.carrier, target.timeoutMs)
    const { run, frames } = whole
    const got = readGot(run, frames, reference.marking).filter(({ key, from }) => key !== undefined && from === 'stream')
    return lastId(frames) === undefined ? skip(lab, scenario, 'the call sent no IDs this time') : work(whole, got)
  })
}

/** Stops once so many messages of the call have come and the last frame has an ID to resume from. */
export function stopAfter (count: number, read: (frames: readonly Frame[]) => readonly Got[], how: Stop['how'] = 'cut'): Stop {
  return {
    how,
    when: frames => lastId(frames) !== undefined && (count === 0 || frames.at(-1)?.id !== undefined) &&
      read(frames).filter(({ key, from }) => key !== undefined && from === 'stream').length >= count
  }
}

/** Lets the running call send a few messages that nobody gets. */
export async function miss ({ reference }: Lab): Promise<void> {
  await sleep(Math.max(MIN_MISS_MS, Math.min(2.5 * reference.gapMs, MAX_MISS_MS)))
}

/** The resume of an interrupted call with its own cursor. */
export function planOf ({ reference, target }: Lab, { run, cursor, owed }: Interrupted): Plan {
  return { run, reference, timeoutMs: target.timeoutMs, cursor, owed }
}

/** The resume of a call that is over: nothing can be live any more, whatever the timing of the reference says. */
export function planAfter (lab: Lab, run: Run, got: readonly Got[]): Omit<Plan, 'cursor' | 'owed'> {
  const marking = { ...lab.reference.marking, dueMs: new Map(keysOf(got).map(key => [key, 0])) }
  return { run, reference: { ...lab.reference, marking }, timeoutMs: lab.target.timeoutMs }
}

/** What a resumed interruption looked like. */
export function observe (lab: Lab, scenario: ScenarioName, { before }: Interrupted, resumes: Observation['resumes']): Observation {
  const expected = lab.reference.keys
  // A run that already differs before the cut is no run to hold against the reference.
  const trusted = lab.reference.trusted && before.every(({ key }, i) => key === expected[i])
  return { ...blank(lab, scenario), trusted, before, resumes }
}

export function skip (lab: Lab, scenario: ScenarioName, skipped: string): Observation {
  return { ...blank(lab, scenario), skipped }
}

export function blank ({ reference }: Pick<Lab, 'reference'>, scenario: ScenarioName): Observation {
  const { carrier, keys, trusted, shape } = reference
  return { scenario, carrier, trusted, shape, expected: keys, before: [], resumes: [] }
}

export function firstId (frames: readonly Frame[]): string | undefined {
  return frames.find(({ id }) => id !== undefined && id !== '')?.id
}

export function keysOf (got: readonly Got[]): string[] {
  return got.flatMap(({ key }) => key ?? [])
}

async function inSession (lab: Lab, work: (session: Session) => Promise<Observation>): Promise<Observation[]> {
  const session = await Session.open(lab.target)
  try {
    return [await work(session)]
  } finally {
    await session.terminate()
  }
}
