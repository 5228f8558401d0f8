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

/**
 * A message, or undefined for anything that is none: the checks of JSON-RPC 2.0 and MCP (an id is a string or an
 * integer). Only the members that JSON-RPC knows are kept, and `_meta` has the shape that MCP gives it: the SDKs drop
 * what is not so without an answer, and the client would wait for ever.
 */
export function asMessage (value: unknown): RpcMessage | undefined {
  if (!isObject(value) || value.jsonrpc !== '2.0') return undefined
  const { id, method, params, result, error } = value
  if ('id' in value && typeof id !== 'string' && !Number.isSafeInteger(id)) return undefined
  const head = { jsonrpc: '2.0', ...'id' in value ? { id } : {} }
  if ('method' in value) {
    if (typeof method !== 'string' || (params !== undefined && !(isObject(params) && isMeta(params._meta)))) return undefined
    return { ...head, method, ...params === undefined ? {} : { params } } as RpcMessage
  }
  if (!('id' in value) || isObject(result) === isObject(error)) return undefined
  if (isObject(result)) return isMeta(result._meta) ? { ...head, result } as RpcResponse : undefined
  return isObject(error) && Number.isSafeInteger(error.code) && typeof error.message === 'string' ? { ...head, error } as unknown as RpcResponse : undefined
}

function isMeta (meta: unknown): boolean {
  if (meta === undefined) return true
  if (!isObject(meta)) return false
  const { progressToken, 'io.modelcontextprotocol/related-task': task } = meta
  return (progressToken === undefined || typeof progressToken === 'string' || Number.isSafeInteger(progressToken)) &&
    (task === undefined || (isObject(task) && typeof task.taskId === 'string'))
}

export function rpcError (id: RpcId | null, code: number, message: string, data?: unknown): object {
  return { jsonrpc: '2.0', error: { code, message, ...(data === undefined ? {} : { data }) }, id }
}

export function isObject (value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
