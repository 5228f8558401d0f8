import { RpcCode } from '../errors.ts'
import type { StreamRequest } from '../log/log.ts'
import type { RpcResponse } from './jsonrpc.ts'

/**
 * The response of a request whose real one is gone, in the form that settles every client (DESIGN.md section 6): an
 * `isError` result for a tool call, else a JSON-RPC error.
 */
export function lostResponse ({ id, method }: StreamRequest): RpcResponse {
  const text = 'The outcome of this request is unknown: its response was lost. It may have run.'
  return method === 'tools/call'
    ? { jsonrpc: '2.0', id, result: { content: [{ type: 'text', text }], isError: true } }
    : { jsonrpc: '2.0', id, error: { code: RpcCode.lost, message: text } }
}
