import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { RpcCode, SessionGone } from '../errors.ts'
import type { Endpoint } from './endpoint.ts'
import { get } from './get.ts'
import { readSessionId, readVersion } from './headers.ts'
import { refuseOrigin } from './origin.ts'
import { Post } from './post.ts'
import { Refusal, SESSION_NOT_FOUND, idOf } from './refusal.ts'

const EXPOSED = 'Mcp-Session-Id, Mcp-Resume, MCP-Protocol-Version'

/** POST, GET and DELETE: headers in, status out. */
export function registerRoutes (scope: FastifyInstance, endpoint: Endpoint): void {
  const { config } = endpoint
  scope.addHook('onRequest', async (request, reply) => {
    if (request.headers.origin !== undefined) {
      const exposed = reply.getHeader('access-control-expose-headers')
      reply.header('access-control-expose-headers', exposed === undefined ? EXPOSED : `${String(exposed)}, ${EXPOSED}`)
    }
    const reason = refuseOrigin(request.raw, config)
    if (reason !== undefined) await new Refusal(403, RpcCode.refused, reason).send(reply)
  })
  parseJson(scope, config.bodyLimit)
  scope.setErrorHandler(async (error, request, reply) => {
    if (error instanceof Refusal) return await error.send(reply, idOf(request.body))
    // It ended after it had been found.
    if (error instanceof SessionGone) return await SESSION_NOT_FOUND.send(reply)
    // JSON.parse takes any depth; what recurses afterwards does not.
    if (error instanceof RangeError && /call stack/.test(error.message)) {
      return await new Refusal(400, RpcCode.invalidRequest, 'The body is nested too deeply').send(reply, idOf(request.body))
    }
    const { statusCode = 500, message } = error as { statusCode?: number, message: string }
    if (statusCode >= 500) request.log.error({ err: error }, 'the request failed')
    const code = statusCode >= 500 ? RpcCode.internal : statusCode === 400 ? RpcCode.parse : RpcCode.refused
    return await new Refusal(statusCode, code, statusCode >= 500 ? 'Internal error' : message).send(reply, idOf(request.body))
  })
  const post = new Post(endpoint)
  scope.post(config.path, async (request, reply) => await post.post(request, reply))
  // A HEAD would take the stream from the connection that carries it.
  scope.get(config.path, { exposeHeadRoute: false }, async (request, reply) => await get(endpoint, request, reply))
  scope.delete(config.path, async (request, reply) => await terminate(endpoint, request, reply))
}

async function terminate (endpoint: Endpoint, request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
  readVersion(request.raw)
  const sid = readSessionId(request.raw)
  try {
    if (await endpoint.snapshot(request, sid, undefined) === undefined) throw SESSION_NOT_FOUND
    await endpoint.sessions.terminate(sid)
  } catch (error) {
    return await endpoint.away(reply, [], false, error)
  }
  return await reply.code(204).send()
}

/** JSON alone, by a parser of the scope's own: its limit is an option, and an empty body is none (clients send DELETE with a content type). */
function parseJson (scope: FastifyInstance, bodyLimit: number): void {
  const parse = scope.getDefaultJsonParser('error', 'ignore')
  scope.removeAllContentTypeParsers()
  scope.addContentTypeParser<string>('application/json', { parseAs: 'string', bodyLimit }, (request, body, done) => {
    if (body === '') done(null, undefined)
    else void parse(request, body, done)
  })
}
