import type { FastifyReply } from 'fastify'
import { RpcCode } from '../errors.ts'
import { isObject, rpcError, type RpcId } from '../session/jsonrpc.ts'

/** An answer to a request that is not taken: a status and a JSON-RPC error that says what to do. */
export class Refusal {
  readonly status: number
  readonly code: number
  readonly message: string
  readonly data: unknown

  constructor (status: number, code: number, message: string, data?: unknown) {
    this.status = status
    this.code = code
    this.message = message
    this.data = data
  }

  /** @param id of the refused request, echoed with its JSON type; null when there is none, and for 404 */
  async send (reply: FastifyReply, id: RpcId | null = null): Promise<FastifyReply> {
    return await reply.code(this.status).type('application/json').send(rpcError(this.status === 404 ? null : id, this.code, this.message, this.data))
  }
}

/** One body for a session that is unknown, has expired, was terminated or is another principal's. */
export const SESSION_NOT_FOUND = new Refusal(404, RpcCode.sessionNotFound, 'Session not found')

/** The id to echo in a refusal of `body`, where it has one. */
export function idOf (body: unknown): RpcId | null {
  if (!isObject(body) || !('method' in body)) return null
  return typeof body.id === 'string' || typeof body.id === 'number' ? body.id : null
}
