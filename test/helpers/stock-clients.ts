import { Client as Client2, StreamableHTTPClientTransport as Transport2 } from '@modelcontextprotocol/client'
import { Client as Client1 } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport as Transport1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { ElicitRequestSchema } from '@modelcontextprotocol/sdk/types.js'
import type { Owner } from './teardown.ts'

export interface StockOptions {
  headers?: Record<string, string>
  /** Answers elicitations; without it the client does not declare the capability. */
  onElicit?: (params: any) => Elicited | Promise<Elicited>
  /** The transports' own fetch, for a guard or a log. */
  fetch?: typeof fetch
  reconnectionOptions?: ReconnectionOptions
  /** Joins a session that is there, instead of opening one; it listens after `notifications/initialized`. */
  sessionId?: string
  /** More options for the constructor of either client. */
  client?: Record<string, unknown>
}

export interface Elicited {
  action: 'accept' | 'decline' | 'cancel'
  content?: Record<string, string>
  [key: string]: unknown
}

export interface ReconnectionOptions {
  initialReconnectionDelay: number
  maxReconnectionDelay: number
  reconnectionDelayGrowFactor: number
  maxRetries: number
}

export interface StockCallOptions {
  onprogress?: (progress: { progress: number, total?: number | undefined, message?: string | undefined }) => void
  timeout?: number
  resetTimeoutOnProgress?: boolean
  signal?: AbortSignal
  resumptionToken?: string
  onresumptiontoken?: (token: string) => void
}

/** An unmodified SDK client, with the few things the tests ask of either version. */
export interface Stock {
  /** The SDK's own objects, for what the facade lacks. */
  readonly client: any
  readonly transport: any
  readonly sessionId: string | undefined
  /** Every notification that reached the application, progress aside. */
  readonly notifications: Array<{ method: string, params?: any }>
  /** What `onerror` of client and transport reported. */
  readonly errors: Error[]
  /** Calls a tool; gives the text of its first content, throws for `isError` and JSON-RPC errors. */
  callText (name: string, args?: Record<string, unknown>, options?: StockCallOptions): Promise<string>
  callTool (name: string, args?: Record<string, unknown>, options?: StockCallOptions): Promise<any>
  /** Ends the session with a DELETE. */
  terminate (): Promise<void>
  close (): Promise<void>
}

/**
 * Connects a stock client: 1 is `@modelcontextprotocol/sdk`, 2 is `@modelcontextprotocol/client`.
 * Closed at teardown.
 */
export async function connectStock (t: Owner, version: 1 | 2, url: string, options: StockOptions = {}): Promise<Stock> {
  const { onElicit } = options
  const info = { name: `stock-${version}`, version: '1.0.0' }
  const clientOptions = { capabilities: onElicit === undefined ? {} : { elicitation: { form: {} } }, ...options.client }
  const transportOptions = {
    ...(options.headers !== undefined && { requestInit: { headers: options.headers } }),
    ...(options.fetch !== undefined && { fetch: options.fetch }),
    ...(options.sessionId !== undefined && { sessionId: options.sessionId }),
    ...(options.reconnectionOptions !== undefined && { reconnectionOptions: options.reconnectionOptions })
  }

  if (version === 1) {
    const client = new Client1(info, clientOptions)
    if (onElicit !== undefined) client.setRequestHandler(ElicitRequestSchema, ({ params }) => onElicit(params))
    return connect(t, client, new Transport1(new URL(url), transportOptions), (params, options) => client.callTool(params, undefined, options))
  }
  const client = new Client2(info, clientOptions)
  if (onElicit !== undefined) client.setRequestHandler('elicitation/create', ({ params }) => onElicit(params))
  return connect(t, client, new Transport2(new URL(url), transportOptions), (params, options) => client.callTool(params, options))
}

type CallTool = (params: { name: string, arguments: Record<string, unknown> }, options: StockCallOptions) => Promise<any>

async function connect (t: Owner, client: Client1 | Client2, transport: Transport1 | Transport2, call: CallTool): Promise<Stock> {
  const notifications: Stock['notifications'] = []
  const errors: Error[] = []
  client.fallbackNotificationHandler = async notification => { notifications.push(notification) }
  client.onerror = error => { errors.push(error) }
  t.teardown(() => client.close())
  await client.connect(transport as never)

  const callTool: Stock['callTool'] = (name, args = {}, options = {}) => call({ name, arguments: args }, options)
  return {
    client,
    transport,
    get sessionId () { return transport.sessionId },
    notifications,
    errors,
    callTool,
    async callText (name, args, options) {
      const { content, isError } = await callTool(name, args, options)
      if (isError) throw new Error(content?.[0]?.text ?? 'isError without a text')
      return content[0].text
    },
    terminate: () => transport.terminateSession(),
    close: () => client.close()
  }
}
