import { readGot, startRun } from './calls.ts'
import type { Call, Run } from './calls.ts'
import { describeResume, follow } from './follow.ts'
import { forgeAhead } from './id-shape.ts'
import { Session } from './mcp-session.ts'
import { lastId } from './observation.ts'
import type { Got, Observation, Resume, ScenarioName } from './observation.ts'
import { completeRun } from './reference.ts'
import { blank, firstId, keysOf, miss, observe, planAfter, planOf, skip, stopAfter, withInterrupted, withWhole } from './stage.ts'
import type { Interrupted, Lab } from './stage.ts'
import type { Frame } from './wire.ts'

/** Does something to a server and says what it saw; it judges nothing. */
export type Scenario = (lab: Lab) => Promise<Observation[]>

const GARBAGE = 'not-an-event-id'
const SMALL_FLOOD = 60
const SMALL_FLOOD_MS = 2000
const BUSY_EVENTS = 100
const BUSY_PAUSE_MS = 3
const BUSY_STRETCH = 8
const BUSY_GETS = 10

/** In the order they are run; the first is the one that decides whether the server resumes at all. */
export const scenarios: ReadonlyArray<readonly [ScenarioName, Scenario]> = [
  ['exact cursor', lab => withInterrupted(lab, 'exact cursor', 'cut', interrupted => cutTwice(lab, 'exact cursor', interrupted))],
  ['caught up', lab => resumeRunning(lab, 'caught up', run => run.cursor, { immediately: true })],
  ['second drop', secondDrop],
  ['half-open', halfOpen],
  ['other replica', otherReplica],
  ['busy stream', busyStream],
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

async function otherReplica (lab: Lab): Promise<Observation[]> {
  const { url2 } = lab
  if (url2 === undefined) return []
  return withInterrupted(lab, 'other replica', 'cut', interrupted => cutTwice(lab, 'other replica', interrupted, url2))
}

// The second cut shows what the first hides: IDs that start anew on the resumed connection.
async function cutTwice (lab: Lab, scenario: ScenarioName, interrupted: Interrupted, url?: URL): Promise<Observation> {
  const { run, owed, cursor } = interrupted
  await miss(lab)
  const stop = owed.length < 4 ? undefined : stopAfter(2, frames => readGot(run, frames, lab.reference.marking))
  const plan = planOf(lab, interrupted)
  const first = await follow({ ...plan, ...(url !== undefined && { url }), ...(stop !== undefined && { stop }) })
  const last = first.at(-1)
  if (last?.endedBy !== 'probe' || last.status !== 200) return observe(lab, scenario, interrupted, first)
  await miss(lab)
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
    await miss(lab)
    const resumes = await follow({ ...planOf(lab, interrupted), conflicts: 0 })
    if (resumes.at(-1)?.status === 200) {
      run.watched.unstall()
      await run.watched.wait(() => false, 100)
      const unread = readGot(run, run.watched.trace.unread, lab.reference.marking)
      return { ...observe(lab, 'half-open', interrupted, resumes), unread }
    }
    run.watched.cut()
    await miss(lab)
    const afterClose = (await follow(planOf(lab, interrupted))).at(-1)
    return { ...observe(lab, 'half-open', interrupted, resumes), ...(afterClose !== undefined && { afterClose }) }
  })
}

// A message that is stored between the reading of the replay and the arrival of the new connection is easily lost, and
// only a stream that is busy at that moment shows it. So: many cuts, and resumes at once.
async function busyStream (lab: Lab): Promise<Observation[]> {
  const { reference, target, floodEvents } = lab
  const scenario = 'busy stream'
  const args = reference.call.flood?.(BUSY_EVENTS, BUSY_PAUSE_MS)
  if (floodEvents === 0 || args === undefined) return []
  const call: Call = { ...reference.call, params: { ...reference.call.params, arguments: args } }
  return withWhole(lab, scenario, async ({ run: { session, startedMs }, complete: trusted }, whole) => {
    const marking = { ...reference.marking, dueMs: new Map(whole.map(({ key, atMs }) => [key!, atMs - startedMs])) }
    const started: Run[] = []
    const read = (frames: readonly Frame[]): Got[] => started.flatMap(run => readGot(run, frames, marking))
    const stop = stopAfter(BUSY_STRETCH, read)
    const run = await startRun(session, call, reference.carrier, stop)
    started.push(run)
    await run.watched.wait(() => run.watched.closed, target.timeoutMs)
    const before = read(run.watched.trace.frames).filter(({ key }) => key !== undefined)
    let cursor = lastId(run.watched.trace.frames)
    if (cursor === undefined) return skip(lab, scenario, 'the call did not get as far as the cut')
    const plan = { run, reference: { ...reference, marking }, timeoutMs: target.timeoutMs, owed: keysOf(whole).slice(before.length) }
    const resumes: Resume[] = []
    while (resumes.length < BUSY_GETS) {
      const last = resumes.length === BUSY_GETS - 1
      resumes.push(...await follow({ ...plan, cursor, ...(!last && { stop }) }))
      if (resumes.at(-1)?.endedBy !== 'probe') break
      cursor = lastId(resumes.map(({ heldId: id }) => ({ ...(id !== undefined && { id }) }))) ?? cursor
    }
    run.post.cut()
    return { ...blank(lab, scenario), expected: keysOf(whole), trusted: trusted && reference.trusted, before, resumes }
  }, call)
}

async function finishedStream (lab: Lab): Promise<Observation[]> {
  return withWhole(lab, 'finished stream', async ({ run, frames, complete: trusted }, got) => {
    const resumes = await follow({ ...planAfter(lab, run, got), cursor: lastId(frames)!, owed: [] })
    return { ...blank(lab, 'finished stream'), expected: keysOf(got), trusted, before: got, resumes }
  })
}

async function firstEvent (lab: Lab): Promise<Observation[]> {
  return withWhole(lab, 'first event', async ({ run, frames, complete: trusted }, got) => {
    // Another stream in the same session: none of its messages belong here.
    if (run.carrier === 'request') await completeRun(run.session, lab.reference.call, run.carrier, lab.target.timeoutMs)
    const { cursor, before, owed } = atFirst(got, frames)
    const resumes = await follow({ ...planAfter(lab, run, got), cursor, owed })
    return { ...blank(lab, 'first event'), expected: keysOf(got), trusted, before, resumes }
  })
}

async function olderThanRetained (lab: Lab): Promise<Observation[]> {
  const { reference, floodEvents } = lab
  const scenario = 'older than retained'
  if (floodEvents === 0) return [skip(lab, scenario, 'pushing events out means many calls or long ones; --flood N allows it')]
  const flood = reference.call.flood?.(floodEvents, 0)
  const call = flood === undefined ? reference.call : { ...reference.call, params: { ...reference.call.params, arguments: flood } }
  return withWhole(lab, scenario, async ({ run, frames, complete: trusted }, got) => {
    // A call that cannot be made longer is repeated: retention is often one bound for the whole session.
    if (flood === undefined) await repeat(lab, run.session, got.length)
    const { cursor, before, owed } = atFirst(got, frames)
    const resumes = await follow({ ...planAfter(lab, run, got), cursor, owed })
    return { ...blank(lab, scenario), expected: keysOf(got), trusted, before, resumes }
  }, call)
}

async function repeat ({ reference, target }: Lab, session: Session, eventsPerCall: number): Promise<void> {
  const end = performance.now() + SMALL_FLOOD_MS
  for (let events = eventsPerCall; events < SMALL_FLOOD && performance.now() < end; events += Math.max(1, eventsPerCall)) {
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
    if (!immediately) await miss(lab)
    return observe(lab, scenario, interrupted, await follow({ ...planOf(lab, interrupted), cursor }))
  })
}

// The client has the first frame with an ID and nothing after it: with an opening frame that is no message at all.
function atFirst (got: readonly Got[], frames: readonly Frame[]): { cursor: string, before: readonly Got[], owed: readonly string[] } {
  const cursor = firstId(frames)!
  const before = got.slice(0, got.findIndex(({ id }) => id === cursor) + 1)
  return { cursor, before, owed: keysOf(got.slice(before.length)) }
}
