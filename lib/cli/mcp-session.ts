import { randomInt } from 'node:crypto'
import { Connection } from './wire.ts'
import type { Message, Stop } from './wire.ts'

/** Whom to talk to, and how patiently. */
export interface Target {
  readonly url: URL
  readonly headers: Readonly<Record<string, string>>
  readonly protocol: string
  readonly timeoutMs: number
  /** The end of the whole probe, on the clock of `performance.now()`. */
  readonly deadline: number
}

/** Why the probe cannot go on, in words for its user. */
export class ProbeError extends Error {
  /** The server belongs to a protocol era without sessions and cursors. */
  readonly nothingPromised: boolean

  constructor (message: string, nothingPromised = false) {
    super(message)
    this.nothingPromised = nothingPromised
  }
}

const SESSION_HEADER = 'mcp-session-id'
const REQUESTS_PER_SESSION = 1000
// Anywhere in a large range: a server may still hold the messages of an earlier probe, and those are not ours.
let sessions = randomInt(1000, 1_000_000)

/** One MCP session as a client without any memory of its own: every request and every cursor is the caller's choice. */
export class Session {
  readonly id: string | undefined
  readonly protocol: string
  readonly serverName: string
  readonly #target: Target
  readonly #number: number
  #requests = 0

  private constructor (target: Target, number: number, id: string | undefined, result: Readonly<Record<string, unknown>>) {
    this.#target = target
    this.#number = number
    this.id = id
    this.protocol = String(result['protocolVersion'])
    const info = result['serverInfo'] as { name?: unknown, version?: unknown } | undefined
    this.serverName = [info?.name, info?.version].filter(part => typeof part === 'string').join(' ') || 'unnamed server'
  }

  /** Initializes a session. Fails with a {@link ProbeError} that says why this is not a server to probe. */
  static async open (target: Target): Promise<Session> {
    const number = ++sessions
    const id = number * REQUESTS_PER_SESSION
    const params = {
      protocolVersion: target.protocol,
      capabilities: {},
      clientInfo: { name: 'mcp-resume probe', version: '1' }
    }
    const connection = new Connection({
      url: target.url,
      method: 'POST',
      headers: { ...target.headers, accept: 'application/json, text/event-stream', 'content-type': 'application/json' },
      body: { jsonrpc: '2.0', id, method: 'initialize', params },
      deadline: target.deadline
    })
    await connection.wait(() => responseTo(connection, id) !== undefined, target.timeoutMs)
    const response = responseTo(connection, id)
    connection.cut()
    if (typeof response?.result?.['protocolVersion'] !== 'string') throw refusal(target, connection, response)
    const session = new Session(target, number, connection.header(SESSION_HEADER), response.result)
    const initialized = session.post({ jsonrpc: '2.0', method: 'notifications/initialized' })
    await initialized.wait(() => initialized.answered, target.timeoutMs)
    initialized.cut()
    return session
  }

  /** The session that a request ID or progress token of {@link nextRequestId} belongs to. */
  owns (id: number): boolean {
    return Math.floor(id / REQUESTS_PER_SESSION) === this.#number
  }

  /** Unique over all sessions of this process, so that a message that strays is recognised. */
  nextRequestId (): number {
    return this.#number * REQUESTS_PER_SESSION + ++this.#requests
  }

  post (message: object, stop?: Stop): Connection {
    return new Connection({
      url: this.#target.url,
      method: 'POST',
      headers: { ...this.#headers(), accept: 'application/json, text/event-stream', 'content-type': 'application/json' },
      body: message,
      deadline: this.#target.deadline,
      ...(stop !== undefined && { stop })
    })
  }

  /** Opens the standalone stream or, with a cursor, resumes a stream. */
  get (cursor?: string, stop?: Stop, url: URL = this.#target.url): Connection {
    return new Connection({
      url,
      method: 'GET',
      headers: {
        ...this.#headers(), accept: 'text/event-stream', ...(cursor !== undefined && { 'last-event-id': encodeHeader(cursor) })
      },
      deadline: this.#target.deadline,
      ...(stop !== undefined && { stop })
    })
  }

  /** Makes a request that nobody cuts; undefined when there is no answer. */
  async ask (method: string, params: object = {}): Promise<Message | undefined> {
    const id = this.nextRequestId()
    const connection = this.post({ jsonrpc: '2.0', id, method, params })
    await connection.wait(() => responseTo(connection, id) !== undefined, this.#target.timeoutMs)
    connection.cut()
    return responseTo(connection, id)
  }

  /** Ends the session; a server that does not answer is not waited for. */
  async terminate (): Promise<void> {
    if (this.id === undefined) return
    const connection = new Connection({
      url: this.#target.url, method: 'DELETE', headers: this.#headers(), deadline: this.#target.deadline
    })
    await connection.wait(() => connection.answered, Math.min(this.#target.timeoutMs, 500))
    connection.cut()
  }

  #headers (): Record<string, string> {
    return {
      ...this.#target.headers,
      'mcp-protocol-version': this.protocol,
      ...(this.id !== undefined && { [SESSION_HEADER]: this.id })
    }
  }
}

// The SSE standard sends the ID as UTF-8; node writes each character of a header as one byte.
function encodeHeader (cursor: string): string {
  // eslint-disable-next-line no-control-regex
  if (/[\u0000-\u0008\u000a-\u001f\u007f]/.test(cursor)) throw new ProbeError(`an ID of the server cannot be sent back in a header: ${JSON.stringify(cursor)}`)
  return Buffer.from(cursor, 'utf8').toString('latin1')
}

function responseTo (connection: Connection, id: number): Message | undefined {
  return connection.messages.find(message => message.method === undefined && message.id === id)
}

function refusal (target: Target, connection: Connection, response: Message | undefined): ProbeError {
  const { status, contentType, body, error } = connection.trace
  const url = target.url.href
  if (status === undefined) {
    return new ProbeError(connection.trace.closedBy === 'error' && error !== undefined
      ? `cannot reach ${url}: ${error}`
      : `${url} did not answer initialize within ${target.timeoutMs} ms`)
  }
  const failure = response?.error ?? connection.messages.find(message => message.error !== undefined)?.error
  if (failure !== undefined && JSON.stringify(failure.data ?? '').includes('2026-')) {
    return new ProbeError(`${url} serves only protocol versions without sessions (${failure.message ?? 'no message'})`, true)
  }
  if (status === 401 || status === 403) {
    return new ProbeError(`${url} wants authorization (HTTP ${status}): pass --header "Authorization: Bearer …"`)
  }
  if (failure !== undefined) {
    return new ProbeError(`${url} refused initialize (HTTP ${status}): ${failure.message ?? 'no message'} (${failure.code ?? 'no code'})`)
  }
  const location = connection.header('location')
  if (location !== undefined && status >= 300 && status < 400) {
    return new ProbeError(`${url} redirects (HTTP ${status}) to ${location}: probe that URL`)
  }
  if (connection.streams) return new ProbeError(`${url} opened a stream on initialize but sent no answer within ${target.timeoutMs} ms`)
  const excerpt = (body ?? '').replace(/\s+/g, ' ').trim().slice(0, 80)
  return new ProbeError(`${url} is not an MCP Streamable HTTP endpoint: HTTP ${status}, ` +
    `${contentType ?? 'no content type'}${excerpt === '' ? '' : `, “${excerpt}”`}`)
}
