import { hasResponse, readGot, startRun } from './calls.ts'
import type { Call } from './calls.ts'
import { ProbeError, type Session } from './mcp-session.ts'
import type { Carrier } from './observation.ts'
import { readAll } from './reference.ts'
import { isSafe, planArguments, streamingLikelihood } from './tool-args.ts'
import type { Tool } from './tool-args.ts'
import type { Frame, Message } from './wire.ts'

/** A tool the user names, with arguments if the schema does not say enough. */
export interface Wanted {
  readonly tool: string
  readonly args?: Readonly<Record<string, unknown>>
}

/** What calls of this server look like, as far as they may be made. */
export interface Discovery {
  /** The calls worth cutting, the best for each way that messages take. */
  readonly found: ReadonlyArray<{ readonly call: Call, readonly carrier: Carrier }>
  readonly sawIds: boolean
  readonly sawEvents: boolean
  /** The standalone stream: 200, or why not. */
  readonly listenStatus: number | undefined
  /** Every answer came as plain JSON. */
  readonly onlyJson: boolean
  readonly tried: readonly string[]
  /** Tools that were left alone because nothing says that calling them is harmless. */
  readonly untouched: number
  /** Answers that were errors: the arguments may be wrong. */
  readonly failures: readonly string[]
}

const MAX_TRIES = 5
const ENOUGH_EVENTS = 4
const MAX_PAGES = 5
const LISTEN_MS = 1000

/** Calls what may be called, once each and uncut, until something streams events with IDs. */
export async function discover (session: Session, wanted: readonly Wanted[], timeoutMs: number, log: (text: string) => void): Promise<Discovery> {
  const tools = await listTools(session)
  const candidates = wanted.length > 0 ? wanted.map(want => choose(tools, want)) : suggest(tools)
  const best = new Map<Carrier, { call: Call, events: number }>()
  const failures: string[] = []
  let sawIds = false
  let sawEvents = false
  let listenStatus: number | undefined
  let onlyJson = true
  for (const call of candidates) {
    if (wanted.length === 0 && (best.get('request')?.events ?? 0) >= ENOUGH_EVENTS) break
    log(`trying ${nameOf(call)}`)
    const trial = await tryOnce(session, call, timeoutMs)
    listenStatus = trial.listenStatus
    onlyJson &&= !trial.streamed
    if (trial.failure !== undefined) failures.push(`${nameOf(call)}: ${trial.failure}`)
    for (const [carrier, frames, events] of trial.streams) {
      sawIds ||= frames.some(({ id }) => id !== undefined && id !== '')
      sawEvents ||= frames.some(({ messages }) => messages.length > 0)
      // An opening event and the response are enough for one cut.
      const enough = frames.filter(({ id }) => id !== undefined).length >= 2 && events > 0
      if (enough && events > (best.get(carrier)?.events ?? 0)) best.set(carrier, { call, events })
    }
  }
  const found = (['request', 'standalone'] as const).flatMap(carrier => {
    const call = best.get(carrier)?.call
    return call === undefined ? [] : { call, carrier }
  })
  const untouched = wanted.length > 0 ? 0 : tools.filter(tool => !isSafe(tool)).length
  return { found, sawIds, sawEvents, listenStatus, onlyJson, tried: candidates.map(nameOf), untouched, failures }
}

interface Trial {
  readonly streams: ReadonlyArray<readonly [Carrier, readonly Frame[], number]>
  readonly listenStatus: number | undefined
  readonly streamed: boolean
  readonly failure: string | undefined
}

async function tryOnce (session: Session, call: Call, timeoutMs: number): Promise<Trial> {
  const listener = session.get()
  await listener.wait(() => listener.answered, LISTEN_MS)
  const run = await startRun(session, call, 'request')
  await readAll(run, run.post, timeoutMs)
  if (!listener.closed) await readAll({ ...run, carrier: 'standalone' }, listener, timeoutMs)
  const response = run.post.messages.find(message => message.method === undefined)
  const marking = { coarse: false, dueMs: new Map<string, number>() }
  const count = (frames: readonly Frame[]): number =>
    readGot(run, frames, marking).filter(({ key, id, from }) => key !== undefined && id !== undefined && from === 'stream').length
  const streams = ([['request', run.post.trace.frames], ['standalone', listener.trace.frames]] as const)
    .map(([carrier, frames]) => [carrier, frames, count(frames)] as const)
  listener.cut()
  run.post.cut()
  const answered = hasResponse(run, run.post)
  return {
    streams,
    listenStatus: listener.trace.status,
    streamed: run.post.streams,
    failure: answered ? failureOf(response) : run.post.streams ? undefined : `HTTP ${run.post.trace.status ?? 'no answer'}`
  }
}

async function listTools (session: Session): Promise<Tool[]> {
  const tools: Tool[] = []
  let cursor: unknown
  for (let page = 0; page < MAX_PAGES; page++) {
    const answer = await session.ask('tools/list', cursor === undefined ? {} : { cursor })
    if (Array.isArray(answer?.result?.['tools'])) tools.push(...answer.result['tools'] as Tool[])
    cursor = answer?.result?.['nextCursor']
    if (cursor === undefined) break
  }
  return tools
}

function choose (tools: readonly Tool[], { tool: name, args }: Wanted): Call {
  const tool = tools.find(tool => tool.name === name)
  if (tool === undefined) {
    throw new ProbeError(`the server has no tool “${name}”${tools.length === 0 ? '' : `; it has ${tools.map(({ name }) => name).join(', ')}`}`)
  }
  return toCall(tool, args)
}

// A list is always allowed; behind servers that stream every answer it is enough for one cut.
function suggest (tools: readonly Tool[]): Call[] {
  const safe = tools.filter(isSafe).sort((a, b) => streamingLikelihood(b) - streamingLikelihood(a)).slice(0, MAX_TRIES)
  return [...safe.map(tool => toCall(tool)), { method: 'tools/list', params: {}, safe: true }]
}

function toCall (tool: Tool, given?: Readonly<Record<string, unknown>>): Call {
  const { args, flood } = planArguments(tool, given)
  return {
    method: 'tools/call',
    params: { name: tool.name, arguments: args },
    safe: isSafe(tool),
    ...(flood !== undefined && { flood })
  }
}

function nameOf ({ method, params }: Call): string {
  return typeof params['name'] === 'string' ? params['name'] : method
}

function failureOf (response: Message | undefined): string | undefined {
  if (response?.error !== undefined) return response.error.message ?? 'an error without a message'
  if (response?.result?.['isError'] !== true) return undefined
  const content = response.result['content']
  const text = Array.isArray(content) ? (content[0] as { text?: unknown } | undefined)?.text : undefined
  return typeof text === 'string' ? text.slice(0, 200) : 'a result with isError'
}
