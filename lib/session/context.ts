import type { Counters } from '../counters.ts'
import type { Log } from '../log/log.ts'
import type { Outbox } from '../outbox.ts'
import type { RpcMessage, RpcId } from './jsonrpc.ts'
import type { ServerRequests } from './request-ids.ts'
import type { LiveSession } from './live-session.ts'

/** An MCP SDK server, by structure: `McpServer` or `Server` of SDK 1.x or 2.x. */
export interface McpServerLike {
  connect (transport: any): Promise<void>
  close? (): Promise<void>
}

/** What a message brings along for the SDK's handlers. */
export interface MessageExtra {
  readonly authInfo?: unknown
  readonly requestInfo?: unknown
  /** The HTTP request, for SDK 2.x. */
  readonly request?: Request
}

export interface SendOptions {
  readonly relatedRequestId?: RpcId | undefined
}

/** The SDK's Transport, as both majors use it. */
export interface McpTransport {
  sessionId?: string
  onmessage?: ((message: any, extra?: any) => void) | undefined
  onclose?: (() => void) | undefined
  onerror?: ((error: Error) => void) | undefined
  start (): Promise<void>
  send (message: RpcMessage, options?: SendOptions): Promise<void>
  close (): Promise<void>
}

/** What the sessions of a replica share. */
export interface Context {
  readonly log: Log
  readonly replica: string
  readonly requests: ServerRequests<LiveSession>
  readonly outbox: Outbox
  readonly counters: Counters
  readonly makeServer: (sid: string) => McpServerLike | Promise<McpServerLike>
  readonly warn: (details: object, message: string) => void
}
