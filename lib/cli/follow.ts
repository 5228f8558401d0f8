import { setTimeout as sleep } from 'node:timers/promises'
import { readGot } from './calls.ts'
import type { Run } from './calls.ts'
import { lastId } from './observation.ts'
import type { Resume } from './observation.ts'
import type { Reference } from './reference.ts'
import { announcesLoss, readFrame, signalOf } from './signal.ts'
import type { Connection, Stop } from './wire.ts'

/** A resume that is to be made. */
export interface Plan {
  readonly run: Run
  readonly reference: Reference
  /** The messages that have to come, in order; none on a finished stream. */
  readonly owed: readonly string[]
  readonly cursor: string
  readonly timeoutMs: number
  readonly stop?: Stop
  readonly url?: URL
  /** How often a 409 is taken for the server not having noticed the cut yet. */
  readonly conflicts?: number
}

const MAX_GETS = 6
const MAX_BARREN = 3
const CONFLICT_MS = 200
const LINGER_MS = 200
const QUIET_MS = 1000

/**
 * Resumes as a patient client would: when the server ends the stream before everything has come, it comes back with its
 * newest ID. A few GETs in all, and fewer when they bring nothing, so that a server in a loop is shown and not hammered.
 */
export async function follow (plan: Plan): Promise<Resume[]> {
  const { run, owed, timeoutMs } = plan
  const resumes: Resume[] = []
  let { cursor } = plan
  let conflicts = plan.conflicts ?? 2
  let barren = 0
  while (resumes.length < MAX_GETS) {
    const connection = run.session.get(cursor, plan.stop, plan.url)
    await connection.wait(() => connection.answered, timeoutMs)
    if (connection.streams) await drain(plan, connection)
    else if (connection.answered) await connection.wait(() => connection.closed, QUIET_MS)
    const resume = describeResume(plan, connection)
    resumes.push(resume)
    connection.cut()
    if (resume.status === 409 && conflicts-- > 0) {
      await sleep(CONFLICT_MS)
      continue
    }
    if (!connection.streams || resume.endedBy !== 'server' || finished(plan, resumes)) break
    barren = resume.got.some(({ key }) => key !== undefined && owed.includes(key)) ? 0 : barren + 1
    if (barren === MAX_BARREN) break
    cursor = resume.heldId ?? cursor
    await sleep(Math.max(50, Math.min(connection.trace.retryMs ?? CONFLICT_MS, 1000)))
  }
  return resumes
}

async function drain (plan: Plan, connection: Connection): Promise<void> {
  const { reference, timeoutMs, owed } = plan
  const quiet = Math.min(timeoutMs, QUIET_MS)
  const patient = timeoutMs + 2 * reference.longestGapMs
  const due = new Set(owed)
  // Only what is owed is progress: pings, or the same again and again, must not keep the probe for ever.
  const arrived = (): number => new Set(describeResume(plan, connection).got.flatMap(({ key }) => key !== undefined && due.has(key) ? key : [])).size
  const told = (): boolean => announcesLoss(signalOf(connection.trace))
  while (!connection.closed && (owed.length === 0 || !finished(plan, [describeResume(plan, connection)]))) {
    const count = arrived()
    const lost = told()
    const news = await connection.wait(() => arrived() > count || told() !== lost, owed.length === 0 || lost ? quiet : patient)
    if (!news) return
  }
  // What comes after the last message is a repeat, or the end.
  await connection.wait(() => false, LINGER_MS)
}

function finished ({ owed }: Plan, resumes: readonly Resume[]): boolean {
  const last = owed.at(-1)
  return last === undefined || resumes.some(({ got }) => got.some(({ key, from }) => key === last && from === 'stream'))
}

/** What one connection of a resume has brought so far. */
export function describeResume (plan: Plan, connection: Connection): Resume {
  const { run, reference } = plan
  const { status, contentType, body, error, closedBy, openedMs, frames, cursor = plan.cursor } = connection.trace
  const signal = signalOf(connection.trace)
  const firstMessage = frames.findIndex(frame => frame.messages.length > 0 && readFrame(frame) === undefined)
  const opening = firstMessage === -1 ? frames : frames.slice(0, firstMessage)
  const heldId = lastId(frames)
  return {
    cursor,
    primed: lastId(opening) !== undefined,
    got: readGot(run, frames, reference.marking, openedMs),
    openedMs,
    lastedMs: performance.now() - openedMs,
    ...(status !== undefined && { status }),
    ...(contentType !== undefined && { contentType }),
    ...(body !== undefined && { body }),
    ...(error !== undefined && { error }),
    ...(signal !== undefined && { signal }),
    ...(heldId !== undefined && { heldId }),
    ...(closedBy !== undefined && { endedBy: closedBy === 'probe' ? 'probe' as const : 'server' as const }),
    ...(plan.url !== undefined && { replica: true })
  }
}
