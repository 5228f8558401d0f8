/** JSON-RPC 2.0 messages, as far as a transport looks into them. */
export type RpcId = string | number

export interface RpcRequest {
  readonly jsonrpc: '2.0'
  readonly id: RpcId
  readonly method: string
  readonly params?: Record<string, unknown> | undefined
}

export interface RpcNotification {
  readonly jsonrpc: '2.0'
  readonly method: string
  readonly params?: Record<string, unknown> | undefined
}

export interface RpcError {
  readonly code: number
  readonly message: string
  readonly data?: unknown
}

export interface RpcResponse {
  readonly jsonrpc: '2.0'
  readonly id: RpcId
  readonly result?: Record<string, unknown>
  readonly error?: RpcError
}

export type RpcMessage = RpcRequest | RpcNotification | RpcResponse

export function isRequest (message: RpcMessage): message is RpcRequest {
  return 'method' in message && 'id' in message
}

export function isNotification (message: RpcMessage): message is RpcNotification {
  return 'method' in message && !('id' in message)
}

export function isCancellation (message: RpcMessage): message is RpcNotification {
  return 'method' in message && message.method === 'notifications/cancelled'
}

export function isResponse (message: RpcMessage): message is RpcResponse {
  return !('method' in message)
}

/** A message, or undefined for anything that is none: the checks of JSON-RPC 2.0 and MCP (an id is a string or an integer). */
export function asMessage (value: unknown): RpcMessage | undefined {
  if (!isObject(value) || value.jsonrpc !== '2.0') return undefined
  const hasId = 'id' in value
  if (hasId && typeof value.id !== 'string' && !Number.isSafeInteger(value.id)) return undefined
  if ('method' in value) {
    if (typeof value.method !== 'string' || (value.params !== undefined && !isObject(value.params))) return undefined
  } else if (!hasId || isObject(value.result) === isObject(value.error)) return undefined
  return value as unknown as RpcMessage
}

export function rpcError (id: RpcId | null, code: number, message: string, data?: unknown): object {
  return { jsonrpc: '2.0', error: { code, message, ...(data === undefined ? {} : { data }) }, id }
}

export function isObject (value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
