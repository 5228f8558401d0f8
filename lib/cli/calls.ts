import { createHash } from 'node:crypto'
import type { Session } from './mcp-session.ts'
import type { Carrier, Got } from './observation.ts'
import { readFrame } from './signal.ts'
import type { Flood } from './tool-args.ts'
import type { Connection, Frame, Message, Stop } from './wire.ts'

/** A request whose messages come as events, and where they come. */
export interface Call {
  readonly method: string
  readonly params: Readonly<Record<string, unknown>>
  /** The server says it may be repeated, or it is a list. */
  readonly safe: boolean
  readonly flood?: Flood
}

/** One execution of a call. */
export interface Run {
  readonly session: Session
  readonly requestId: number
  readonly startedMs: number
  readonly carrier: Carrier
  /** The connection that is watched, and cut. */
  readonly watched: Connection
  readonly post: Connection
}

/** How messages are told apart, and when each of them is due. */
export interface Marking {
  /** Only progress and the response count: the other messages differ from run to run. */
  readonly coarse: boolean
  /** Milliseconds after the start of the call. */
  readonly dueMs: ReadonlyMap<string, number>
}

const TOKEN = 'probe-'
const LISTEN_MS = 1000
export const RESULT = 'result'

/** Starts a call and watches where its messages come; `stop` acts on that connection. */
export async function startRun (session: Session, call: Call, carrier: Carrier, stop?: Stop): Promise<Run> {
  const listener = carrier === 'standalone' ? session.get(undefined, stop) : undefined
  // Some servers send no status line before the first event: they listen all the same.
  if (listener !== undefined) await listener.wait(() => listener.answered, LISTEN_MS)
  const requestId = session.nextRequestId()
  const params = { ...call.params, _meta: { progressToken: `${TOKEN}${requestId}` } }
  const startedMs = performance.now()
  const post = session.post(
    { jsonrpc: '2.0', id: requestId, method: call.method, params },
    listener === undefined ? stop : undefined)
  return { session, requestId, startedMs, carrier, watched: listener ?? post, post }
}

/** Reads frames as messages of this run, in order; signals and frames that only carry an ID are left out. */
export function readGot (run: Run, frames: readonly Frame[], marking: Marking, openedMs = run.startedMs): Got[] {
  return frames.filter(frame => readFrame(frame) === undefined).flatMap(frame => frame.messages.map(message => {
    const { key, from } = identify(message, run, marking.coarse)
    const dueMs = key === undefined ? undefined : marking.dueMs.get(key)
    return {
      from,
      atMs: frame.atMs,
      live: dueMs === undefined || run.startedMs + dueMs > openedMs,
      ...(key !== undefined && { key }),
      ...(frame.id !== undefined && frame.id !== '' && { id: frame.id })
    }
  }))
}

/** The response of the run is among the messages of a connection. */
export function hasResponse (run: Run, connection: Connection): boolean {
  return connection.messages.some(message => message.method === undefined && message.id === run.requestId)
}

/** A call as a user would type it. */
export function describeCall (call: Call): string {
  const { name, arguments: args } = call.params
  return name === undefined ? call.method : `${call.method} ${String(name)} ${JSON.stringify(args)}`
}

function identify (message: Message, run: Run, coarse: boolean): { key?: string, from: Got['from'] } {
  const { method, params = {} } = message
  if (method === undefined) return owned(RESULT, message.id, run)
  const token = params['progressToken']
  if (typeof token === 'string' && token.startsWith(TOKEN)) {
    return owned(`progress ${String(params['progress'])}`, Number(token.slice(TOKEN.length)), run)
  }
  if (coarse || isResync(method)) return { from: 'stream' }
  return { key: describe(method, params), from: 'stream' }
}

function owned (key: string, id: unknown, run: Run): { key?: string, from: Got['from'] } {
  if (id === run.requestId) return { key, from: 'stream' }
  // An error response to nobody (id null) is no stray.
  if (typeof id !== 'number') return { from: 'stream' }
  return { key, from: run.session.owns(id) ? 'other stream' : 'other session' }
}

// Hints to read again may come at any time and are no part of a call's sequence.
function isResync (method: string): boolean {
  return method.endsWith('/list_changed') || method === 'notifications/resources/updated'
}

function describe (method: string, params: Readonly<Record<string, unknown>>): string {
  const text = JSON.stringify(method === 'notifications/message' ? params['data'] : params)
  const name = method.replace(/^notifications\//, '')
  if (text.length <= 40) return `${name} ${text}`
  return `${name} ${text.slice(0, 28)}… ${createHash('sha256').update(text).digest('hex').slice(0, 8)}`
}
