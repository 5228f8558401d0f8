import { describeCall, readGot } from './calls.ts'
import { explain } from './cause.ts'
import type { Judged } from './cause.ts'
import { discover } from './discover.ts'
import type { Discovery, Wanted } from './discover.ts'
import { inferIdShape } from './id-shape.ts'
import { ProbeError, Session } from './mcp-session.ts'
import type { Target } from './mcp-session.ts'
import { lastId } from './observation.ts'
import type { Carrier, Observation, ScenarioName } from './observation.ts'
import { buildReference, completeRun } from './reference.ts'
import type { Reference, Whole } from './reference.ts'
import { scenarios, standaloneScenarios } from './scenarios.ts'
import { blank, skip } from './stage.ts'
import type { Lab } from './stage.ts'
import { judge } from './verdict.ts'
import { putInWords } from './words.ts'

export interface ProbeOptions {
  readonly url: URL
  /** Another replica of the same server. */
  readonly url2?: URL
  readonly headers: Readonly<Record<string, string>>
  readonly protocol: string
  /** How long one answer, or the next message, is waited for. */
  readonly timeoutMs: number
  readonly wanted: readonly Wanted[]
  /** Undefined: as much as a harmless call allows. */
  readonly floodEvents?: number
  /** These scenarios alone; all by default. */
  readonly only?: readonly ScenarioName[]
  log (text: string): void
}

export interface ScenarioReport extends Judged {
  readonly name: ScenarioName
  readonly carrier: Carrier
  readonly words: string
}

export interface Report {
  readonly url: string
  readonly url2?: string
  readonly server: string
  readonly protocol: string
  readonly stateful: boolean
  readonly summary: 'sound' | 'flawed' | 'nothing promised' | 'could not tell'
  /** The summary's reason, when the scenarios do not say it. */
  readonly because?: string
  readonly streams: ReadonlyArray<{ call: string, carrier: Carrier, messages: number, idForm: string, sampleId: string, trusted: boolean }>
  readonly scenarios: readonly ScenarioReport[]
  readonly causes: readonly string[]
}

// More than the 100 and the 1000 that measured servers keep.
const FLOOD_EVENTS = 1200
const TOO_QUICK = 'Every message was a replay: the call is too quick to show whether a resumed connection joins one that still runs. A slower --tool would.'
const TOTAL_MS = 60_000
const TOTAL_TIMEOUTS = 15

/** Diagnoses a server from outside. Fails with a {@link ProbeError} when there is no server to diagnose. */
export async function probe (options: ProbeOptions): Promise<Report> {
  const { url, headers, protocol, timeoutMs, wanted, log } = options
  const deadline = performance.now() + TOTAL_MS + TOTAL_TIMEOUTS * timeoutMs
  const target: Target = { url, headers, protocol, timeoutMs, deadline }
  const session = await Session.open(target)
  const about = {
    url: url.href,
    ...(options.url2 !== undefined && { url2: options.url2.href }),
    server: session.serverName,
    protocol: session.protocol,
    stateful: session.id !== undefined
  }
  log(`${session.serverName}, protocol ${session.protocol}`)
  try {
    const discovery = await discover(session, wanted, timeoutMs, log)
    if (discovery.found.length === 0) return { ...about, ...nothingFound(session, discovery), streams: [], causes: [] }
    const reports: ScenarioReport[] = []
    const streams: Array<Report['streams'][number]> = []
    for (const { call, carrier } of discovery.found) {
      log(`measuring ${describeCall(call)} uninterrupted, twice`)
      const first = await completeRun(session, call, carrier, timeoutMs)
      const second = await completeRun(session, call, carrier, timeoutMs)
      const reference = buildReference(call, carrier, first, second)
      streams.push({
        call: describeCall(call),
        carrier,
        messages: reference.keys.length,
        idForm: reference.shape.form,
        sampleId: lastId(first.frames) ?? '',
        trusted: reference.trusted
      })
      const floodEvents = options.floodEvents ?? (call.safe ? FLOOD_EVENTS : 0)
      const lab: Lab = { target, reference, floodEvents, ...(options.url2 !== undefined && { url2: options.url2 }) }
      reports.push(report(uniqueIds(reference, [first, second])))
      const primary = call === discovery.found[0]?.call && carrier === discovery.found[0].carrier
      reports.push(...await runScenarios(lab, primary, options))
    }
    const summary = summarize(reports)
    const quick = summary === 'sound' && !reports.some(({ seen }) => seen.resumes.some(({ got }) => got.some(({ live }) => live)))
    return { ...about, summary, ...(quick && { because: TOO_QUICK }), streams, scenarios: reports, causes: explain(reports) }
  } finally {
    await session.terminate()
  }
}

async function runScenarios (lab: Lab, primary: boolean, { only, log }: ProbeOptions): Promise<ScenarioReport[]> {
  const { carrier } = lab.reference
  const chosen = scenarios.filter(([name]) => carrier === 'request' || standaloneScenarios.includes(name) ||
    (primary && name !== 'finished stream')).filter(([name]) => only === undefined || only.includes(name))
  const reports: ScenarioReport[] = []
  for (const [name, scenario] of chosen) {
    log(carrier === 'standalone' ? `${name}, standalone stream` : name)
    const seen = await guarded(lab, name, () => scenario(lab))
    reports.push(...seen.map(report))
  }
  return reports
}

// One scenario that cannot be carried out says nothing about the others, and one that time cut short nothing at all.
async function guarded (lab: Lab, scenario: ScenarioName, work: () => Promise<Observation[]>): Promise<Observation[]> {
  try {
    const seen = performance.now() < lab.target.deadline ? await work() : []
    return performance.now() < lab.target.deadline ? seen : [skip(lab, scenario, 'the time for the whole probe was up')]
  } catch (error) {
    if (error instanceof ProbeError) return [skip(lab, scenario, error.message)]
    throw error
  }
}

function uniqueIds (reference: Reference, runs: readonly Whole[]): Observation {
  const streams = runs.map(({ run, frames }) => readGot(run, frames, reference.marking).filter(({ key, from }) => key !== undefined && from === 'stream'))
  return { ...blank({ reference }, 'unique IDs'), streams }
}

function notOffered (skipped: string): Observation {
  const shape = inferIdShape([])
  return { scenario: 'exact cursor', carrier: 'request', expected: [], trusted: false, shape, before: [], resumes: [], skipped, offered: false }
}

function report (seen: Observation): ScenarioReport {
  const judgement = judge(seen)
  return { name: seen.scenario, carrier: seen.carrier, seen, judgement, words: putInWords(seen, judgement) }
}

function summarize (reports: readonly ScenarioReport[]): Report['summary'] {
  if (reports.some(({ judgement }) => judgement.sound === false)) return 'flawed'
  // Without a resume that worked nothing is proven, however many refusals were polite.
  return reports.some(({ name, judgement }) => name === 'exact cursor' && judgement.sound === true) ? 'sound' : 'could not tell'
}

function nothingFound (session: Session, { sawIds, sawEvents, listenStatus, onlyJson, tried, untouched, failures }: Discovery): Pick<Report, 'summary' | 'because' | 'scenarios'> {
  const hints = [
    ...failures.map(failure => `${failure}.`),
    `Tried ${tried.join(', ')}.`,
    ...(untouched > 0 ? [`${untouched} tools are not annotated as read-only or idempotent and were left alone; name one with --tool.`] : [])
  ].join(' ')
  const nothing = (because: string): Pick<Report, 'summary' | 'because' | 'scenarios'> =>
    ({ summary: 'nothing promised', because: `Design B: ${because}.`, scenarios: [report(notOffered(because))] })
  if (sawIds) return { summary: 'could not tell', scenarios: [], because: `Events carry IDs, but no call sent enough of them to cut. ${hints}` }
  if (sawEvents) return nothing('no event carries an ID, so nothing is promised and nothing can be resumed')
  if (session.id === undefined) return nothing('the server is stateless and sent no event with an ID, so nothing is promised')
  if (onlyJson && listenStatus !== undefined && listenStatus >= 400) {
    return nothing(`answers are plain JSON and GET is answered ${listenStatus}, so there is no stream to resume`)
  }
  return { summary: 'could not tell', scenarios: [], because: `No event was seen. ${hints}` }
}
