import { setTimeout as sleep } from 'node:timers/promises'
import { hasResponse, readGot, RESULT, startRun } from './calls.ts'
import type { Call, Marking, Run } from './calls.ts'
import { inferIdShape } from './id-shape.ts'
import type { IdShape } from './id-shape.ts'
import type { Session } from './mcp-session.ts'
import { lastId } from './observation.ts'
import type { Carrier, Got } from './observation.ts'
import { announcesLoss, signalOf } from './signal.ts'
import type { Connection, Frame } from './wire.ts'

/** A call that was never cut. */
export interface Whole {
  readonly run: Run
  readonly frames: readonly Frame[]
  /** Every message came: no loss was announced where the server itself ended the stream and was asked again. */
  readonly complete: boolean
}

/** What an uninterrupted call looks like: the truth that everything after a cut is held against. */
export interface Reference {
  readonly call: Call
  readonly carrier: Carrier
  readonly keys: readonly string[]
  /** Two uninterrupted runs sent the same messages, each of them recognisable. */
  readonly trusted: boolean
  readonly marking: Marking
  readonly shape: IdShape
  /** The usual and the longest pause between two messages. */
  readonly gapMs: number
  readonly longestGapMs: number
  readonly durationMs: number
}

const MAX_GETS = 6
const QUIET_MS = 400
const DEFAULT_RETRY_MS = 200
const NO_MARKING: Marking = { coarse: false, dueMs: new Map() }

/** Runs a call to its end; a server that ends the stream early and means to be asked again is asked again. */
export async function completeRun (session: Session, call: Call, carrier: Carrier, timeoutMs: number): Promise<Whole> {
  const run = await startRun(session, call, carrier)
  const frames: Frame[] = []
  let connection: Connection = run.watched
  let gets = 0
  let lossAnnounced = false
  for (;;) {
    await readAll(run, connection, timeoutMs)
    frames.push(...connection.trace.frames)
    lossAnnounced ||= announcesLoss(signalOf(connection.trace))
    const cursor = lastId(frames)
    const early = carrier === 'request' && connection.streams && connection.trace.closedBy === 'server' && !hasResponse(run, connection)
    if (!early || cursor === undefined || gets === MAX_GETS) break
    gets++
    await sleep(Math.min(connection.trace.retryMs ?? DEFAULT_RETRY_MS, 1000))
    connection = session.get(cursor)
  }
  connection.cut()
  run.post.cut()
  return { run, frames, complete: !lossAnnounced }
}

/** Reads a run without resuming anything: to see what a call does at all. */
export async function readAll (run: Run, connection: Connection, timeoutMs: number): Promise<void> {
  await run.post.wait(() => hasResponse(run, run.post) || hasResponse(run, connection), timeoutMs)
  while (!hasResponse(run, connection) || run.carrier === 'standalone') {
    const { frames } = connection.trace
    const count = frames.length
    // On the standalone stream nothing says that it was the last message: silence has to do.
    const patience = run.carrier === 'standalone' ? Math.min(QUIET_MS, timeoutMs) : timeoutMs
    if (!await connection.wait(() => frames.length > count, patience)) return
  }
}

/** Holds two uninterrupted runs against each other. */
export function buildReference (call: Call, carrier: Carrier, first: Whole, second: Whole): Reference {
  const exact = sequence(first, false)
  const coarse = !same(keysOf(exact), keysOf(sequence(second, false)))
  const messages = coarse ? sequence(first, true) : exact
  const keys = keysOf(messages)
  const trusted = first.complete && second.complete && new Set(keys).size === keys.length && same(keys, keysOf(sequence(second, coarse)))
  const times = [first.run.startedMs, ...messages.map(({ atMs }) => atMs)]
  const gaps = times.slice(1).map((ms, i) => ms - times[i]!).sort((a, b) => a - b)
  return {
    call,
    carrier,
    keys,
    trusted,
    marking: { coarse, dueMs: new Map(messages.map(({ key, atMs }) => [key!, atMs - first.run.startedMs])) },
    shape: inferIdShape(messages.flatMap(({ id }) => id ?? [])),
    gapMs: gaps[Math.floor(gaps.length / 2)] ?? 0,
    longestGapMs: gaps.at(-1) ?? 0,
    durationMs: times.at(-1)! - first.run.startedMs
  }
}

function sequence ({ run, frames }: Whole, coarse: boolean): Got[] {
  return readGot(run, frames, { ...NO_MARKING, coarse }).filter(({ key, from }) => key !== undefined && from === 'stream')
}

function keysOf (got: readonly Got[]): string[] {
  return got.map(({ key }) => key ?? RESULT)
}

function same (a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((key, i) => key === b[i])
}
