import type { OutgoingHttpHeaders } from 'node:http'
import { del, get, post } from './http-client.ts'
import type { Answer } from './http-client.ts'

export { del, get, post } from './http-client.ts'
export type { Answer } from './http-client.ts'
export type { Frame, SseReader } from './sse-reader.ts'

export interface InitializeOptions {
  protocolVersion?: string
  clientInfo?: { name: string, version: string }
  capabilities?: Record<string, unknown>
  /** Sent with every request of the session. */
  headers?: OutgoingHttpHeaders
  /** false leaves `notifications/initialized` out. */
  initialized?: boolean
}

export interface CallOptions {
  /** The JSON-RPC id; counts up by itself. */
  id?: string | number
  progressToken?: string | number
  headers?: OutgoingHttpHeaders
}

/** A session as a raw client sees it; it follows nothing by itself, each method is one HTTP request. */
export interface Session {
  readonly url: string
  readonly sessionId: string
  /** The version the server chose. */
  readonly protocolVersion: string
  /** The result of `initialize`. */
  readonly result: any
  readonly headers: OutgoingHttpHeaders
  /** The same session through another address. */
  at (url: string): Session
  request (method: string, params?: unknown, options?: CallOptions): Promise<Call>
  /** `tools/call`. */
  call (name: string, args?: Record<string, unknown>, options?: CallOptions): Promise<Call>
  notify (method: string, params?: unknown): Promise<Answer>
  /** Answers a request of the server. */
  respond (id: string | number, result: unknown): Promise<Answer>
  /** Opens the standalone stream, with `Last-Event-ID` when a cursor is given. */
  listen (cursor?: string, headers?: OutgoingHttpHeaders): Promise<Answer>
  /** GET with `Last-Event-ID`. */
  resume (cursor: string, headers?: OutgoingHttpHeaders): Promise<Answer>
  del (): Promise<Answer>
}

/** The answer to a request, as soon as its head is there. */
export interface Call extends Answer {
  readonly id: string | number
  /** The JSON-RPC response, from the stream or the JSON body. */
  response (timeoutMs?: number): Promise<any>
}

/** Performs `initialize` and `notifications/initialized`. */
export async function initialize (url: string, options: InitializeOptions = {}): Promise<Session> {
  const { protocolVersion = '2025-11-25', clientInfo = { name: 'raw', version: '1' }, capabilities = {}, headers = {} } = options
  const message = { jsonrpc: '2.0', id: 0, method: 'initialize', params: { protocolVersion, clientInfo, capabilities } }
  const answer = await post(url, message, headers)
  const response = answer.status === 200 ? await toCall(answer, 0).response() : undefined
  const sessionId = answer.headers['mcp-session-id']
  if (response?.result === undefined || typeof sessionId !== 'string') {
    throw new Error(`initialize was answered ${answer.status} ${answer.body}${JSON.stringify(response ?? '')}`)
  }

  const { result } = response
  const session = openSession(url, {
    sessionId,
    protocolVersion: result.protocolVersion,
    result,
    headers: { ...headers, 'mcp-session-id': sessionId, 'mcp-protocol-version': result.protocolVersion }
  })
  if (options.initialized !== false) {
    const { status, body } = await session.notify('notifications/initialized')
    if (status !== 202) throw new Error(`notifications/initialized was answered ${status} ${body}`)
  }
  return session
}

function openSession (url: string, known: Pick<Session, 'sessionId' | 'protocolVersion' | 'result' | 'headers'>, ids = { last: 0 }): Session {
  const { headers } = known
  return {
    url,
    ...known,
    at: url => openSession(url, known, ids),
    request,
    call: (name, args = {}, options = {}) => request('tools/call', {
      name,
      arguments: args,
      ...(options.progressToken !== undefined && { _meta: { progressToken: options.progressToken } })
    }, options),
    notify: (method, params) => post(url, { jsonrpc: '2.0', method, ...(params !== undefined && { params }) }, headers),
    respond: (id, result) => post(url, { jsonrpc: '2.0', id, result }, headers),
    listen: (cursor, more) => get(url, { ...headers, ...(cursor !== undefined && { 'last-event-id': cursor }), ...more }),
    resume: (cursor, more) => get(url, { ...headers, 'last-event-id': cursor, ...more }),
    del: () => del(url, headers)
  }

  async function request (method: string, params?: unknown, options: CallOptions = {}): Promise<Call> {
    const id = options.id ?? ++ids.last
    const message = { jsonrpc: '2.0', id, method, ...(params !== undefined && { params }) }
    return toCall(await post(url, message, { ...headers, ...options.headers }), id)
  }
}

function toCall (answer: Answer, id: string | number): Call {
  // Properties by delegation: `stream` is a getter that throws when there is none.
  return Object.assign(Object.create(answer) as Answer, {
    id,
    async response (timeoutMs = 10_000): Promise<any> {
      if (!answer.isStream) return answer.json()
      const isResponse = (message: any): boolean => message?.id === id && message.method === undefined
      const frames = await answer.stream.until(frame => isResponse(frame.message), timeoutMs)
      return frames.at(-1)!.message
    }
  })
}
