import type { IncomingMessage } from 'node:http'
import { RpcCode } from '../errors.ts'
import { parseEventId, type EventId } from '../event-id.ts'
import { Refusal } from './refusal.ts'

/** Versions with sessions that this endpoint serves, newest first: all that an SDK server may negotiate. */
export const SESSION_VERSIONS = ['2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05', '2024-10-07']

/** What a request without the version header speaks (2025-11-25, Transports, "Protocol Version Header"). */
const ASSUMED_VERSION = '2025-03-26'
const STATELESS_SINCE = '2026'
const SESSION_HEADER = /^[A-Za-z0-9._~-]{1,128}$/

/** The session a request names. @throws Refusal 400 when it is missing, sent twice, or no text for a key. */
export function readSessionId (request: IncomingMessage): string {
  const value = single(request, 'mcp-session-id')
  if (value === undefined || value === '') {
    throw new Refusal(400, RpcCode.refused, 'Mcp-Session-Id is missing: send the one that the answer to initialize carried')
  }
  if (!SESSION_HEADER.test(value)) throw new Refusal(400, RpcCode.refused, 'Mcp-Session-Id is malformed: send the one that the answer to initialize carried')
  return value
}

/** The cursor of a GET; an empty header is no header. @throws Refusal 400 when it is no event ID of ours. */
export function readCursor (request: IncomingMessage): EventId | undefined {
  const value = single(request, 'last-event-id')
  if (value === undefined || value === '') return undefined
  const cursor = parseEventId(value)
  if (cursor === undefined) throw new Refusal(400, RpcCode.refused, 'Last-Event-ID is malformed: send the last id received, or none')
  return cursor
}

/** The version that a request claims. @throws Refusal 400 for one that is not known here. */
export function readVersion (request: IncomingMessage): string {
  const value = single(request, 'mcp-protocol-version')
  if (value === undefined || value === '') return ASSUMED_VERSION
  if (isStateless(value)) throw new Refusal(400, RpcCode.methodNotFound, 'This endpoint serves the protocol versions with sessions: begin with initialize')
  if (!SESSION_VERSIONS.includes(value)) {
    throw new Refusal(400, RpcCode.refused, `MCP-Protocol-Version is not supported: send one of ${SESSION_VERSIONS.join(', ')}`)
  }
  return value
}

/** A version of the era without sessions. */
export function isStateless (version: unknown): boolean {
  return typeof version === 'string' && /^\d{4}-\d\d-\d\d$/.test(version) && version >= STATELESS_SINCE
}

/** java.net.http's SSE parser fails on a `retry:` line. */
export function failsOnRetry (request: IncomingMessage): boolean {
  return request.headers['user-agent']?.includes('Java-http-client') === true
}

/** A header that may come once. Node joins repeated ones, so the raw list is what tells. */
function single (request: IncomingMessage, name: string): string | undefined {
  const { rawHeaders } = request
  let count = 0
  for (let i = 0; i < rawHeaders.length; i += 2) {
    if (rawHeaders[i]!.toLowerCase() === name) count++
  }
  if (count > 1) throw new Refusal(400, RpcCode.refused, `${name} was sent more than once`)
  const value = request.headers[name]
  return typeof value === 'string' ? value.trim() : undefined
}
