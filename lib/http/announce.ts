import { formatEventId, sameEvent, type EventId } from '../event-id.ts'
import type { SessionRecord, Snapshot } from '../log/log.ts'
import type { Decision } from '../resume.ts'
import { lostResponse } from '../session/lost.ts'
import { encodeComment, encodeCursor, encodeJson, encodeMessage } from '../sse.ts'

/** What a GET is answered with before the first event of the log. */
export interface Announcement {
  readonly text: string
  /** Delivery goes on after this. */
  readonly position: EventId
  /** The position is only a number: the first event above it follows. */
  readonly anchored: boolean
  /** The stream ends with `text`: its response is lost. */
  readonly ended: boolean
}

const EMPTY_DATA_SINCE = '2025-11-25'
const NOTICE_LEVEL = 'error'
const LEVELS_ABOVE = ['critical', 'alert', 'emergency']

/** Clients below 2025-11-25 take an event with empty data for a broken message. */
export function readsEmptyData (version: string): boolean {
  return version >= EMPTY_DATA_SINCE
}

/**
 * The frames that open the answer to a GET (DESIGN.md section 6): the cursor again, so that a second drop before the
 * first event loses nothing; what was lost, in a form the application sees; and the response of a request whose real
 * one is gone.
 *
 * @param nonce 2 to 4 characters `[0-9a-z]` that make the repeated cursor an ID of its own; parsing strips them
 */
export function announce (cursor: EventId, decision: Exclude<Decision, { cause: 'expired' }>, snapshot: Snapshot, nonce: string): Announcement {
  const { session, stream } = snapshot
  const modern = readsEmptyData(session.version)
  const standalone = stream!.request === undefined
  const primed = `${formatEventId(cursor)}.${nonce}`
  if (decision.outcome === 'resumed') {
    const text = modern
      ? encodeCursor(primed)
      : standalone ? encodeComment('resumed') : encodeMessage(primed, notice('debug', { outcome: 'resumed', cause: decision.cause }))
    return { text, position: decision.start, anchored: false, ended: false }
  }

  const { newest, evicted, finished, request } = stream!
  const from = decision.start ?? newest
  const nothingLeft = 'offset' in from && sameEvent(from, newest)
  const lost = nothingLeft && finished && evicted !== undefined && sameEvent(evicted, newest)
  const data = {
    outcome: decision.outcome,
    cause: decision.cause,
    ...decision.cause === 'evicted' ? { missed: decision.missed } : {},
    from: formatEventId(cursor),
    to: formatEventId(newest)
  }
  const notices = [notice(noticeLevel(session), data), ...standalone ? resync(session) : []]
  if (lost && request !== undefined) notices.push(encodeJson(lostResponse(request)))
  // A finished stream's last event is its response: it is delivered again rather than not at all.
  const again = nothingLeft && finished && !lost
  // The last frame moves the client's cursor when no event of the log will.
  const lastId = nothingLeft && !again ? `${formatEventId(newest)}${lost ? `.${nonce}` : ''}` : undefined
  const firstId = modern ? undefined : primed
  const text = (modern ? encodeCursor(primed) : '') + notices.map((message, i) => {
    const id = (i === notices.length - 1 ? lastId : undefined) ?? (i === 0 ? firstId : undefined)
    return encodeMessage(id, message)
  }).join('')
  if (again) return { text, position: { ...newest, seq: newest.seq - 1, offset: 0 }, anchored: true, ended: false }
  return { text, position: { ...cursor, ...from }, anchored: !('offset' in from), ended: lost }
}

/** What makes a client read again what it may have missed. */
function resync ({ capabilities, subscriptions }: SessionRecord): string[] {
  const declared = (name: string, flag: string): boolean => (capabilities[name] as Record<string, unknown> | undefined)?.[flag] === true
  return [
    ...['tools', 'prompts', 'resources'].filter(name => declared(name, 'listChanged')).map(name => notification(`notifications/${name}/list_changed`)),
    ...subscriptions.map(uri => notification('notifications/resources/updated', { uri }))
  ]
}

function notice (level: string, data: object): string {
  return notification('notifications/message', { level, logger: 'fastify-mcp-resume', data })
}

/** An error, but never below what the client asked to see: a gap is not silent. */
function noticeLevel ({ logLevel }: SessionRecord): string {
  return logLevel !== undefined && LEVELS_ABOVE.includes(logLevel) ? logLevel : NOTICE_LEVEL
}

function notification (method: string, params?: object): string {
  return encodeJson({ jsonrpc: '2.0', method, ...(params === undefined ? {} : { params }) })
}
