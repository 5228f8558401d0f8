import type { FastifyReply, FastifyRequest } from 'fastify'
import { DuplicateRequest, LogAway, RpcCode, SessionGone, TooManySessions } from '../errors.ts'
import type { Carrier, Snapshot } from '../log/log.ts'
import { encodeComment, encodeJson, encodeMessage } from '../sse.ts'
import type { AnswerMode } from '../session/call.ts'
import type { MessageExtra } from '../session/context.ts'
import { asMessage, isObject, isRequest, rpcError, type RpcMessage, type RpcRequest, type RpcResponse } from '../session/jsonrpc.ts'
import type { LiveSession } from '../session/live-session.ts'
import { parseAccept, type Accepted } from './accept.ts'
import type { Endpoint } from './endpoint.ts'
import { isStateless, readSessionId, readVersion } from './headers.ts'
import { Refusal, SESSION_NOT_FOUND } from './refusal.ts'

/** Safe to repeat: answered as plain JSON, since a client whose answer is lost just asks again. */
const QUICK = /^(initialize|ping|completion\/complete|prompts\/get|resources\/read|.+\/list)$/
const BATCH_VERSION = '2025-03-26'
const MOST_INITIALIZE_BYTES = 64 * 1024

/** POST: messages of the client. */
export class Post {
  readonly #endpoint: Endpoint

  constructor (endpoint: Endpoint) {
    this.#endpoint = endpoint
  }

  /** One request, notification, answer or batch. */
  async post (request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const { body } = request
    refuseStateless(request, body)
    const accepted = parseAccept(request.headers.accept)
    if (!accepted.json && !accepted.sse) throw new Refusal(406, RpcCode.refused, 'Accept must allow application/json or text/event-stream')
    const messages = readMessages(body)
    const [first] = messages
    if (!Array.isArray(body) && isRequest(first!) && first.method === 'initialize') return await this.#initialize(request, reply, first, accepted)

    readVersion(request.raw)
    const sid = readSessionId(request.raw)
    const asked = messages.filter(isRequest)
    let snapshot: Snapshot | undefined
    try {
      snapshot = await this.#endpoint.snapshot(request, sid, undefined)
    } catch (error) {
      return await this.#endpoint.away(reply, asked, Array.isArray(body), error)
    }
    if (snapshot === undefined) throw SESSION_NOT_FOUND
    const { session: record } = snapshot
    if (Array.isArray(body)) {
      if (record.version !== BATCH_VERSION) throw new Refusal(400, RpcCode.invalidRequest, `Batches are part of ${BATCH_VERSION} only: send one message`)
      return await this.#batch(request, reply, sid, snapshot, messages, accepted)
    }
    const extra = extraOf(request)
    if (!isRequest(first!)) {
      try {
        await this.#endpoint.inbox.receive(sid, record, first!, extra)
      } catch (error) {
        return await this.#endpoint.away(reply, [], false, error)
      }
      return await reply.code(202).send()
    }
    return await this.#call(request, reply, sid, snapshot, first, accepted)
  }

  async #initialize (request: FastifyRequest, reply: FastifyReply, message: RpcRequest, accepted: Accepted): Promise<FastifyReply> {
    const { sessions } = this.#endpoint
    if (JSON.stringify(message.params ?? {}).length > MOST_INITIALIZE_BYTES) {
      throw new Refusal(413, RpcCode.refused, `The params of initialize are kept with the session: send at most ${MOST_INITIALIZE_BYTES} bytes`)
    }
    let response: RpcResponse | object
    try {
      const { sid, response: answer } = await sessions.initialize(message, this.#endpoint.principal(request), extraOf(request))
      if (sid !== undefined) reply.header('mcp-session-id', sid)
      response = answer
    } catch (error) {
      if (error instanceof LogAway) return await this.#endpoint.away(reply, [message], false, error)
      const limited = error instanceof TooManySessions
      if (!limited) request.log.error({ err: error }, 'no session could be opened')
      response = rpcError(message.id, limited ? RpcCode.refused : RpcCode.internal, limited ? error.message : 'The session could not be opened')
    }
    return await this.#sendJson(reply, response, accepted)
  }

  /** Runs one request, answered as JSON or on a stream of its own. */
  async #call (request: FastifyRequest, reply: FastifyReply, sid: string, snapshot: Snapshot, message: RpcRequest, accepted: Accepted): Promise<FastifyReply> {
    const record = snapshot.session
    const { config, sessions, streams } = this.#endpoint
    let session: LiveSession
    try {
      session = await sessions.get(sid, record)
      const own = await sessions.answerFor(session, message)
      if (own !== undefined) return await this.#sendJson(reply, own, accepted)
    } catch (error) {
      return await this.#failed(request, reply, message, accepted, error)
    }
    const mode: AnswerMode = !accepted.sse ? 'json' : accepted.json && QUICK.test(message.method) ? 'quick' : 'stream'
    if (streams.over && mode !== 'quick') {
      return await this.#sendJson(reply, rpcError(message.id, RpcCode.away, 'The server is closing; nothing was started. Try again.', { retryAfter: 1 }), accepted)
    }
    const carrier = streams.nextCarrier()
    const call = session.call(message, mode, carrier)
    sessions.noteChange(session, call)
    if (mode !== 'stream') session.begin(call, extraOf(request))
    try {
      const answer = await within(config.patienceMs, mode === 'stream', call.answer)
      if (answer.kind === 'json') return await this.#sendJson(reply, answer.response, accepted)
      if (answer.kind === 'cancelled') {
        // The specification wants no answer; an empty stream is the only form that no client takes for an error.
        streams.single(reply, {}, encodeComment('cancelled'))
        return reply
      }
      const { opening } = answer
      streams.open(request, reply, {
        sid,
        stream: call.id,
        version: record.version,
        carrier,
        fence: 1,
        runner: carrier.replica,
        takeovers: 0,
        position: opening,
        anchored: false,
        resume: undefined,
        first: streams.opening(record.version, opening),
        ended: false,
        read: mode !== 'stream'
      })
      if (mode === 'stream') session.begin(call, extraOf(request))
      return reply
    } catch (error) {
      call.abandon()
      session.calls.delete(call.id)
      if (error instanceof DuplicateRequest) return await this.#join(request, reply, sid, snapshot, error.stream, carrier)
      return await this.#failed(request, reply, message, accepted, error)
    }
  }

  /** The same request was sent again while it runs: it is not run twice, its stream is delivered from the start. */
  async #join (request: FastifyRequest, reply: FastifyReply, sid: string, { session: record }: Snapshot, stream: string, carrier: Carrier): Promise<FastifyReply> {
    const { log, streams } = this.#endpoint
    const attached = await log.attach(sid, stream, carrier)
    if (attached === undefined) throw SESSION_NOT_FOUND
    streams.open(request, reply, {
      sid,
      stream,
      version: record.version,
      carrier,
      fence: attached.fence,
      runner: attached.runner,
      takeovers: attached.takeovers,
      position: { seq: 0, offset: 0, stream, tag: '' },
      anchored: true,
      resume: undefined,
      first: encodeComment('open'),
      ended: false,
      read: true
    })
    return reply
  }

  /** 2025-03-26: one JSON array of the responses. */
  async #batch (request: FastifyRequest, reply: FastifyReply, sid: string, { session: record }: Snapshot, messages: readonly RpcMessage[], accepted: Accepted): Promise<FastifyReply> {
    const { sessions, inbox } = this.#endpoint
    const extra = extraOf(request)
    const session = await sessions.get(sid, record)
    const responses: Array<Promise<RpcResponse | undefined>> = []
    for (const message of messages) {
      if (!isRequest(message)) {
        await inbox.receive(sid, record, message, extra)
        continue
      }
      const own = await sessions.answerFor(session, message)
      if (own !== undefined) {
        responses.push(Promise.resolve(own))
        continue
      }
      const call = session.call(message, 'json', undefined)
      sessions.noteChange(session, call)
      session.begin(call, extra)
      responses.push(call.answer.then(answer => answer.kind === 'json' ? answer.response : undefined))
    }
    const answers = (await Promise.all(responses)).filter(answer => answer !== undefined)
    return answers.length === 0 ? await reply.code(202).send() : await this.#sendJson(reply, answers, accepted)
  }

  async #sendJson (reply: FastifyReply, response: object, accepted: Accepted): Promise<FastifyReply> {
    if (accepted.json) return await reply.type('application/json').send(response)
    this.#endpoint.streams.single(reply, {}, encodeMessage(undefined, encodeJson(response)))
    return reply
  }

  /** A request that was not started: its own error under its own id, with a status that no client takes for the end. */
  async #failed (request: FastifyRequest, reply: FastifyReply, message: RpcRequest, accepted: Accepted, error: unknown): Promise<FastifyReply> {
    if (error instanceof LogAway) return await this.#endpoint.away(reply, [message], false, error)
    if (error instanceof SessionGone) throw error
    request.log.error({ err: error }, 'a request could not be served')
    return await this.#sendJson(reply, rpcError(message.id, RpcCode.internal, 'The request could not be served'), accepted)
  }
}

/** A probe of the era without sessions falls back on this answer; it must not need Redis. */
function refuseStateless (request: FastifyRequest, body: unknown): void {
  const meta = isObject(body) && isObject(body.params) && isObject(body.params._meta) ? body.params._meta : {}
  if (isStateless(request.headers['mcp-protocol-version']) || isStateless(meta['io.modelcontextprotocol/protocolVersion']) ||
    (isObject(body) && body.method === 'server/discover')) {
    throw new Refusal(400, RpcCode.methodNotFound, 'This endpoint serves the protocol versions with sessions: begin with initialize')
  }
}

function readMessages (body: unknown): readonly RpcMessage[] {
  const messages = (Array.isArray(body) ? body : [body]).map(asMessage)
  if (messages.length === 0 || messages.includes(undefined)) {
    throw new Refusal(400, RpcCode.invalidRequest, 'The body must be a JSON-RPC 2.0 message')
  }
  return messages as RpcMessage[]
}

function extraOf (request: FastifyRequest): MessageExtra {
  const authInfo = (request as { auth?: unknown }).auth ?? (request.raw as { auth?: unknown }).auth
  const { headers } = request
  const pairs = Object.entries(headers).filter((pair): pair is [string, string] => typeof pair[1] === 'string' && !pair[0].startsWith(':'))
  const base = `http://${request.host}`
  const url = new URL(request.url, URL.canParse(base) ? base : 'http://localhost')
  return { ...authInfo === undefined ? {} : { authInfo }, requestInfo: { headers, url }, request: new Request(url, { method: 'POST', headers: pairs }) }
}

/** Waits for `promise`; where `bounded`, for `ms` at most. @throws LogAway then. */
async function within<T> (ms: number, bounded: boolean, promise: Promise<T>): Promise<T> {
  if (!bounded) return await promise
  let timer: NodeJS.Timeout | undefined
  try {
    return await Promise.race([promise, new Promise<never>((_resolve, reject) => {
      timer = setTimeout(() => reject(new LogAway('the stream could not be opened')), ms)
    })])
  } finally {
    clearTimeout(timer)
  }
}
