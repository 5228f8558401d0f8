import type { EventId } from '../event-id.ts'
import type { Carrier, Hint, LogEvent, SessionRecord, StreamRequest, StreamState } from './log.ts'

// The text forms of lua/common.lua, read back.

/** Reads a hint that append.lua published; undefined when it is not one of ours. */
export function parseHint (body: string): Hint | undefined {
  const [head, ...entries] = body.split('\n')
  const [sid, stream, fence] = head!.split(' ')
  if (sid === undefined || stream === undefined || !/^[0-9]+$/.test(fence ?? '')) return undefined
  const events: LogEvent[] = []
  for (const entry of entries) {
    const at = entry.indexOf(' ')
    if (!ENTRY_ID.test(entry.slice(0, at)) || !ENTRY.test(entry.slice(at + 1))) return undefined
    events.push(parseEntry(entry.slice(0, at), entry.slice(at + 1)))
  }
  return { sid, stream, fence: Number(fence), events }
}

const ENTRY_ID = /^[0-9]+-[0-9]+$/
const ENTRY = /^(\w+) (\w+) (\d+) (\S+) \d+ ([omf]) /

export function parseEntry (entryId: string, value: string): LogEvent {
  const [head, stream, tag, pseq, ptag, mark] = ENTRY.exec(value)!
  const dash = entryId.indexOf('-')
  return {
    id: { seq: Number(entryId.slice(0, dash)), offset: Number(entryId.slice(dash + 1)), stream: stream!, tag: tag! },
    predecessor: pseq === '0' ? undefined : { seq: Number(pseq), tag: ptag! },
    payload: value.slice(head.length),
    final: mark === 'f'
  }
}

export function parseRecord (fixed: string, principal: string, initialized: string, level: string, subscriptions: string): SessionRecord {
  return {
    ...JSON.parse(fixed) as Pick<SessionRecord, 'version' | 'initialize' | 'capabilities'>,
    principal,
    initialized: initialized === '1',
    logLevel: level === '' ? undefined : level,
    subscriptions: JSON.parse(subscriptions) as string[]
  }
}

const STREAM_FIELDS = 17

export function parseStream (stream: string, raw: string): StreamState {
  const parts: string[] = []
  let from = 0
  for (let i = 0; i < STREAM_FIELDS; i++) {
    const to = raw.indexOf(' ', from)
    parts.push(raw.slice(from, to))
    from = to + 1
  }
  const [nseq, noff, ntag, eseq, eoff, etag, flag, runner, carrier, connection, fence, wseq, woff, wtag] = parts as [
    string, string, string, string, string, string, string, string, string, string, string, string, string, string, ...string[]]
  const request = raw.slice(from)
  const id = (seq: string, offset: string, tag: string): EventId => ({ seq: Number(seq), offset: Number(offset), stream, tag })
  return {
    newest: id(nseq, noff, ntag),
    evicted: etag === '-' ? undefined : id(eseq, eoff, etag),
    finished: flag === 'f',
    runner,
    request: request === '' ? undefined : parseRequest(request),
    carrier: parseCarrier(carrier, connection),
    fence: Number(fence),
    watermark: id(wseq, woff, wtag)
  }
}

export function formatRequest ({ id, method, digest }: StreamRequest): string {
  return `${digest} ${JSON.stringify([id, method])}`
}

function parseRequest (text: string): StreamRequest {
  const space = text.indexOf(' ')
  const [id, method] = JSON.parse(text.slice(space + 1)) as [StreamRequest['id'], string]
  return { id, method, digest: text.slice(0, space) }
}

export function parseCarrier (replica: string, connection: string): Carrier | undefined {
  return replica === '-' ? undefined : { replica, connection }
}

export function markOf (event: { payload: string, final: boolean }): string {
  return event.final ? 'f' : event.payload === '' ? 'o' : 'm'
}
