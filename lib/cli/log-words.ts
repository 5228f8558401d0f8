import { STANDALONE, formatEventId, type EventId } from '../event-id.ts'
import type { Snapshot, StreamState } from '../log/log.ts'
import type { Inspection } from '../log/redis-log.ts'
import { decideResume, formatOutcome, type Decision } from '../resume.ts'

/** An inspection in words. */
export function describeLog (sid: string, found: Inspection): string {
  const { record, head, floor, floorTime, bytes, events, eventsFound, evictedEarly, ttlMs, streams } = found
  const client = record.initialize.clientInfo as { name?: unknown, version?: unknown } | undefined
  const lines = [
    `session   ${sid}`,
    `protocol  ${record.version}, client ${String(client?.name ?? 'unnamed')} ${String(client?.version ?? '')}`.trimEnd() +
      `, ${record.initialized ? 'initialized' : 'not initialized yet'}`,
    `principal ${record.principal === '' ? 'none' : `${record.principal} (hash)`}`,
    `life      ${seconds(ttlMs)} left without activity`,
    `log       head ${head}, floor ${floor} (logged ${new Date(floorTime).toISOString()}), ${events} events, ${bytes} bytes`,
    `evicted   ${evictedEarly === 0 ? 'none' : `${evictedEarly} events`} inside the retention window`
  ]
  if (eventsFound !== events) lines.push(`WARNING   only ${eventsFound} events are there: Redis itself has evicted the log (set maxmemory-policy noeviction)`)
  lines.push(`streams   ${streams.length}`)
  for (const stream of streams) lines.push(`  ${describeStream(stream)}`)
  return lines.join('\n')
}

function describeStream ({ newest, evicted, finished, runner, request, carrier, fence, watermark }: StreamState): string {
  const what = newest.stream === STANDALONE ? 'standalone' : `${request?.method ?? 'request'} id ${JSON.stringify(request?.id)}`
  const carried = carrier === undefined ? 'not carried' : `carried by ${carrier.replica} ${carrier.connection} (fence ${fence})`
  return [
    `${newest.stream.padEnd(8)} ${what}`,
    `newest ${formatEventId(newest)}`,
    `evicted up to ${evicted === undefined ? 'none' : formatEventId(evicted)}`,
    newest.stream === STANDALONE ? `watermark ${formatEventId(watermark)}` : finished ? 'finished' : `run by ${runner}`,
    carried
  ].join(', ')
}

function seconds (ms: number): string {
  return `${Math.round(ms / 1000)} s`
}

export interface Explained {
  readonly cursor: string
  readonly outcome: string
  readonly cause: string
  /** The `Mcp-Resume` header of the answer, where it is a decision. */
  readonly header: string | undefined
  readonly text: string
}

/** Why a cursor gets its outcome, from the decision that the server makes. */
export function explainCursor (text: string, cursor: EventId | undefined, snapshot: Snapshot): Explained {
  if (cursor === undefined) {
    return {
      cursor: text,
      outcome: 'refused',
      cause: 'malformed',
      header: undefined,
      text: `${text}: refused, malformed\nIt is no event ID of this log (<seq>-<offset>-<stream>-<tag>); the answer is 400, without a look at the log.`
    }
  }
  const decision = decideResume(cursor, snapshot)
  const header = formatOutcome(decision, snapshot)
  return {
    cursor: text,
    outcome: decision.outcome,
    cause: decision.cause,
    header,
    text: `${text}: ${decision.outcome}, ${decision.cause}\n${reason(cursor, decision, snapshot)}\nMcp-Resume: ${header}`
  }
}

function reason (cursor: EventId, decision: Decision, { head, floor, stream, retained }: Snapshot): string {
  const state = stream === undefined
    ? ''
    : ` The stream's newest event is ${formatEventId(stream.newest)}, its newest evicted one ${stream.evicted === undefined ? 'none' : formatEventId(stream.evicted)}.`
  switch (decision.cause) {
    case 'ahead': return `Its number ${cursor.seq} is above the head ${head}: it is not from this log, or the log has lost its newest events.${state}`
    case 'caught-up': return stream!.finished
      ? 'It is the newest event of a finished stream: nothing is left, the answer is 204.'
      : 'It is the newest event of its stream: nothing was missed.'
    case 'replay': return (retained ? 'It is a retained event of its stream.' : 'It is the event before the first retained one of its stream.') +
      ` ${stream!.newest.offset - cursor.offset} events follow it.`
    case 'expired': return 'The log knows no such stream: a request that was finished long ago, or none of this session. The answer is 204.'
    case 'evicted': return `It is below the floor ${floor} of the log: ${decision.missed} events after it are evicted, delivery starts at the first retained one.${state}`
    case 'diverged': return `Its number was issued to another event than the one it names: the log was rolled back, or it never was an event of this stream.${state}`
  }
}
