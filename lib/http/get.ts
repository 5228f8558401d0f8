import type { FastifyReply, FastifyRequest } from 'fastify'
import { LogAway, RpcCode } from '../errors.ts'
import { formatEventId, type EventId } from '../event-id.ts'
import type { Snapshot } from '../log/log.ts'
import { randomText } from '../log/tags.ts'
import { decideResume, formatOutcome, type Decision } from '../resume.ts'
import { encodeComment } from '../sse.ts'
import { parseAccept } from './accept.ts'
import { announce } from './announce.ts'
import type { Endpoint } from './endpoint.ts'
import { readCursor, readSessionId, readVersion } from './headers.ts'
import { Refusal, SESSION_NOT_FOUND } from './refusal.ts'
import type { Arrival } from './streams.ts'

/** GET: a stream from a cursor on, or the standalone stream from where its last connection stood. */
export async function get (endpoint: Endpoint, request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
  const { config, streams, sessions } = endpoint
  if (!parseAccept(request.headers.accept).sse) throw new Refusal(406, RpcCode.refused, 'Accept must allow text/event-stream')
  const claimed = readVersion(request.raw)
  const sid = readSessionId(request.raw)
  const given = config.resumable ? readCursor(request.raw) : undefined
  let snapshot: Snapshot | undefined
  try {
    snapshot = await endpoint.snapshot(request, sid, given ?? 'watermark')
  } catch (error) {
    return away(endpoint, request, reply, given, claimed, error)
  }
  if (snapshot === undefined) throw SESSION_NOT_FOUND
  // Design B: what was sent is gone, and nobody is told otherwise.
  const cursor = (config.resumable ? snapshot.cursor : snapshot.stream?.newest)!
  const decision = decideResume(cursor, config.resumable ? snapshot : { ...snapshot, retained: true })
  const outcome = config.resumable ? describe(given, decision, snapshot) : 'none'
  if (config.resumable && given !== undefined) note(endpoint, request, sid, given, decision)

  const { stream } = snapshot
  if (stream === undefined || decision.cause === 'expired' || (stream.finished && decision.cause === 'caught-up')) {
    // "Do not reconnect", without a content type: nothing is left, or nobody here knows of the stream.
    return await reply.header('mcp-resume', outcome).code(204).send()
  }
  const policy = given === undefined ? 'notice' : decision.outcome === 'gap' ? config.onGap : decision.outcome === 'future' ? config.onFuture : 'notice'
  if (policy !== 'notice') reply.header('mcp-resume', outcome)
  if (policy === 'terminate') {
    await sessions.terminate(sid)
    throw SESSION_NOT_FOUND
  }
  if (policy === 'reject') {
    throw new Refusal(400, decision.outcome === 'gap' ? RpcCode.gap : RpcCode.future, `The cursor cannot be resumed: ${decision.outcome}`,
      { outcome: decision.outcome, cause: decision.cause, head: formatEventId(stream.newest) })
  }

  const carrier = streams.nextCarrier()
  const name = stream.newest.stream
  const { text, ...rest } = announce(cursor, decision, snapshot, randomText(2))
  let arrival: Arrival | undefined
  try {
    arrival = await streams.attach(sid, name, carrier, rest.position, rest.anchored)
  } catch (error) {
    return away(endpoint, request, reply, cursor, claimed, error)
  }
  if (arrival === undefined) throw SESSION_NOT_FOUND
  const { attached } = arrival
  streams.open(request, reply, {
    ...rest,
    sid,
    stream: name,
    version: snapshot.session.version,
    carrier,
    fence: attached.fence,
    runner: attached.runner,
    takeovers: attached.takeovers,
    resume: outcome,
    first: config.resumable ? text : encodeComment('open'),
    read: true,
    arrival
  })
  return reply
}

/** The log stayed away: clients come back every few seconds without counting tries, which an error would make them do. */
function away (endpoint: Endpoint, request: FastifyRequest, reply: FastifyReply, cursor: EventId | undefined, version: string, error: unknown): FastifyReply {
  if (!(error instanceof LogAway)) throw error
  const { counters, streams } = endpoint
  counters.away++
  const id = cursor === undefined ? undefined : `${formatEventId(cursor)}.${randomText(2)}`
  streams.single(reply, { 'mcp-resume': 'away' }, encodeComment('away') + streams.goodbye(request, version, id))
  return reply
}

function note (endpoint: Endpoint, request: FastifyRequest, sid: string, cursor: EventId, decision: Decision): void {
  endpoint.counters[decision.outcome]++
  const details = { sid, cursor: formatEventId(cursor), outcome: decision.outcome, cause: decision.cause }
  if (decision.outcome === 'future') request.log.error(details, 'the cursor is ahead of the log: it is not from here, or the log has lost its newest events')
  else if (decision.outcome === 'gap') request.log.warn(details, 'the cursor cannot be resumed without a gap')
}

/** A header value for the outcome; a GET without a cursor is `fresh` unless it found a gap. */
function describe (given: EventId | undefined, decision: Decision, snapshot: Snapshot): string {
  const text = formatOutcome(decision, snapshot)
  return given === undefined && decision.outcome === 'resumed' ? text.replace(/^resumed;cause=[a-z-]+/, 'fresh') : text
}
