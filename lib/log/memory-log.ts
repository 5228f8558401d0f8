import { STANDALONE, sameEvent, type EventId } from '../event-id.ts'
import type {
  Append, AppendReply, Appended, Attached, Carrier, Change, Log, LogEvent, Page, Retention, SessionRecord, Snapshot,
  StreamState
} from './log.ts'
import { newTag } from './tags.ts'

const FIGHT_MS = 10_000
const MOST_EVICTED = 64
const MOST_RETIRED = 1000
const MOST_SUBSCRIPTIONS = 1000
const SWEEP_MS = 1000

type Mutable<T> = { -readonly [K in keyof T]: T[K] }

interface Entry { readonly event: LogEvent, readonly time: number, readonly size: number }

interface MemoryStream extends Mutable<StreamState> {
  lastToken: { n: number, reply: Appended } | undefined
  fightSince: number
  takeovers: number
}

interface MemorySession {
  record: SessionRecord
  ttlMs: number
  expires: number
  head: number
  entries: Entry[]
  bytes: number
  streams: Map<string, MemoryStream>
  /** Finished streams whose events are all evicted, oldest first. */
  retired: string[]
}

/** The log in this process: the same contract without Redis, for one replica. */
export class MemoryLog implements Log {
  readonly #retention: Retention
  readonly #sessions = new Map<string, MemorySession>()
  readonly #sweep: NodeJS.Timeout

  constructor (retention: Retention) {
    this.#retention = retention
    this.#sweep = setInterval(() => this.#expire(), SWEEP_MS).unref()
  }

  async create (sid: string, record: SessionRecord, ttlMs: number): Promise<void> {
    if (this.#find(sid) !== undefined) return
    const opening: LogEvent = {
      id: { seq: 1, offset: 0, stream: STANDALONE, tag: newTag() }, predecessor: undefined, payload: '', final: false
    }
    this.#sessions.set(sid, {
      record,
      ttlMs,
      expires: Date.now() + ttlMs,
      head: 1,
      entries: [{ event: opening, time: Date.now(), size: 0 }],
      bytes: 0,
      streams: new Map([[STANDALONE, newStream(opening.id, '', undefined, undefined)]]),
      retired: []
    })
  }

  async snapshot (sid: string, principal: string, cursor: EventId | 'watermark' | undefined): Promise<Snapshot | undefined> {
    const session = this.#find(sid)
    if (session === undefined || session.record.principal !== principal) return undefined
    this.#keep(session)
    const stream = cursor === undefined ? undefined : session.streams.get(cursor === 'watermark' ? STANDALONE : cursor.stream)
    const at = cursor === 'watermark' ? stream?.watermark : cursor
    return {
      session: session.record,
      head: session.head,
      floor: session.entries[0]!.event.id.seq,
      stream: stream === undefined ? undefined : stateOf(stream),
      retained: at !== undefined && isRetained(session.entries, at),
      cursor: at
    }
  }

  async record (sid: string): Promise<SessionRecord | undefined> {
    return this.#find(sid)?.record
  }

  async stream (sid: string, name: string): Promise<StreamState | undefined> {
    const stream = this.#find(sid)?.streams.get(name)
    return stream === undefined ? undefined : stateOf(stream)
  }

  async append (sid: string, append: Append): Promise<AppendReply> {
    const session = this.#find(sid)
    if (session === undefined) return { status: 'gone' }
    const { open, token } = append
    let stream = session.streams.get(append.stream)
    if (stream === undefined && open === undefined) return { status: 'unknown' }
    const running = stream === undefined ? findRunning(session, open!.request.digest) : undefined
    if (running !== undefined) return { status: 'duplicate', stream: running }
    if (stream?.lastToken?.n === token.n) return stream.lastToken.reply
    if (stream?.finished === true) return { status: 'finished' }
    if (append.expect !== undefined && !sameEvent(append.expect, stream!.newest)) return { status: 'changed' }

    const events: LogEvent[] = []
    for (const { tag, payload, final } of append.events) {
      const before: EventId | undefined = stream?.newest
      const id = { seq: ++session.head, offset: (before?.offset ?? -1) + 1, stream: append.stream, tag }
      const event = { id, predecessor: before === undefined ? undefined : { seq: before.seq, tag: before.tag }, payload, final }
      if (stream === undefined) {
        stream = newStream(id, token.replica, open!.request, open!.carrier)
        session.streams.set(append.stream, stream)
      }
      stream.newest = id
      stream.finished ||= final
      const size = payload.length
      session.entries.push({ event, time: Date.now(), size })
      session.bytes += size
      events.push(event)
    }
    const evictedEarly = this.#evict(session)
    if (append.finish === true) {
      // After the eviction, so that the stream is retired once.
      stream!.finished = true
      if (stream!.evicted !== undefined && sameEvent(stream!.evicted, stream!.newest)) retire(session, append.stream)
    }
    this.#keep(session)
    const reply: Appended = {
      status: 'appended', events, finished: stream!.finished, carrier: stream!.carrier, fence: stream!.fence, evictedEarly
    }
    stream!.lastToken = { n: token.n, reply: { ...reply, evictedEarly: 0 } }
    return reply
  }

  async read (sid: string, name: string, position: { seq: number, offset: number }, scanned: number, maxBytes: number): Promise<Page | undefined> {
    const session = this.#find(sid)
    const stream = session?.streams.get(name)
    if (session === undefined || stream === undefined) return undefined
    const events: LogEvent[] = []
    let bytes = 0
    let upTo = Math.max(position.seq, scanned)
    for (let i = firstAbove(session.entries, upTo); i < session.entries.length; i++) {
      const { event, size } = session.entries[i]!
      if (event.id.stream === name) {
        if (events.length > 0 && bytes + size > maxBytes) return { events, scanned: upTo, more: true, stream: stateOf(stream) }
        events.push(event)
        bytes += size
      }
      upTo = event.id.seq
    }
    return { events, scanned: upTo, more: false, stream: stateOf(stream) }
  }

  async attach (sid: string, name: string, carrier: Carrier): Promise<Attached | undefined> {
    const session = this.#find(sid)
    const stream = session?.streams.get(name)
    if (session === undefined || stream === undefined) return undefined
    const previous = stream.carrier
    if (previous?.connection === carrier.connection) return { fence: stream.fence, runner: stream.runner, previous: undefined, takeovers: 0 }
    if (previous !== undefined) {
      if (Date.now() - stream.fightSince > FIGHT_MS) {
        stream.fightSince = Date.now()
        stream.takeovers = 0
      }
      stream.takeovers++
    }
    stream.carrier = carrier
    stream.fence++
    this.#keep(session)
    return { fence: stream.fence, runner: stream.runner, previous, takeovers: previous === undefined ? 0 : stream.takeovers }
  }

  async detach (sid: string, name: string, carrier: Carrier, position: EventId): Promise<void> {
    const stream = this.#find(sid)?.streams.get(name)
    if (stream?.carrier?.connection !== carrier.connection) return
    stream.carrier = undefined
    stream.watermark = position
  }

  async tick (sid: string, name: string, carrier: Carrier, position: EventId): Promise<StreamState | undefined> {
    const session = this.#find(sid)
    const stream = session?.streams.get(name)
    if (session === undefined || stream === undefined) return undefined
    if (stream.carrier?.connection === carrier.connection) stream.watermark = position
    this.#keep(session)
    return stateOf(stream)
  }

  async touch (sids: readonly string[]): Promise<void> {
    for (const sid of sids) {
      const session = this.#find(sid)
      if (session !== undefined) this.#keep(session)
    }
  }

  async change (sid: string, change: Change): Promise<boolean> {
    const session = this.#find(sid)
    if (session === undefined) return false
    if (change.kind === 'initialized') session.ttlMs = change.ttlMs
    session.record = changed(session.record, change)
    this.#keep(session)
    return true
  }

  async terminate (sid: string): Promise<boolean> {
    const there = this.#find(sid) !== undefined
    this.#sessions.delete(sid)
    return there
  }

  forget (): void {}

  async unfinished (sid: string): Promise<ReadonlyMap<string, StreamState>> {
    const open = [...this.#find(sid)?.streams ?? []].filter(([, stream]) => !stream.finished && stream.request !== undefined)
    return new Map(open.map(([name, stream]) => [name, stateOf(stream)]))
  }

  async sessions (): Promise<string[]> {
    return [...this.#sessions.keys()].filter(sid => this.#find(sid) !== undefined)
  }

  async sessionsOf (principal: string): Promise<string[]> {
    return [...this.#sessions].filter(([sid, { record }]) => record.principal === principal && this.#find(sid) !== undefined)
      .sort(([, a], [, b]) => (a.expires - a.ttlMs) - (b.expires - b.ttlMs)).map(([sid]) => sid)
  }

  async close (): Promise<void> {
    clearInterval(this.#sweep)
    this.#sessions.clear()
  }

  #find (sid: string): MemorySession | undefined {
    const session = this.#sessions.get(sid)
    return session !== undefined && session.expires > Date.now() ? session : undefined
  }

  #keep (session: MemorySession): void {
    session.expires = Date.now() + session.ttlMs
  }

  #expire (): void {
    for (const [sid, session] of this.#sessions) {
      if (session.expires <= Date.now()) this.#sessions.delete(sid)
    }
  }

  /** Oldest first, a bounded number at a time; the newest event stays. @returns how many went before their time. */
  #evict (session: MemorySession): number {
    const { windowMs, maxEvents, maxBytes } = this.#retention
    const { entries, streams } = session
    let gone = 0
    let early = 0
    while (gone < Math.min(MOST_EVICTED, entries.length - 1)) {
      const { event: { id }, time, size } = entries[gone]!
      const aged = Date.now() - time > windowMs
      if (entries.length - gone <= maxEvents && session.bytes <= maxBytes && !aged) break
      if (!aged) early++
      session.bytes -= size
      gone++
      const stream = streams.get(id.stream)
      if (stream === undefined) continue
      stream.evicted = id
      if (stream.finished && sameEvent(stream.newest, id)) retire(session, id.stream)
    }
    if (gone > 0) entries.splice(0, gone)
    return early
  }
}

/** A record after a change. */
export function changed (record: SessionRecord, change: Change): SessionRecord {
  switch (change.kind) {
    case 'initialized': return { ...record, initialized: true }
    case 'logLevel': return { ...record, logLevel: change.level }
    case 'subscribe': {
      const others = record.subscriptions.filter(uri => uri !== change.uri)
      return others.length >= MOST_SUBSCRIPTIONS ? record : { ...record, subscriptions: [...others, change.uri] }
    }
    case 'unsubscribe': return { ...record, subscriptions: record.subscriptions.filter(uri => uri !== change.uri) }
  }
}

function newStream (id: EventId, runner: string, request: StreamState['request'], carrier: Carrier | undefined): MemoryStream {
  return {
    newest: id,
    evicted: undefined,
    finished: false,
    runner,
    request,
    carrier,
    fence: carrier === undefined ? 0 : 1,
    watermark: id,
    lastToken: undefined,
    fightSince: 0,
    takeovers: 0
  }
}

function stateOf ({ newest, evicted, finished, runner, request, carrier, fence, watermark }: MemoryStream): StreamState {
  return { newest, evicted, finished, runner, request, carrier, fence, watermark }
}

function findRunning (session: MemorySession, digest: string): string | undefined {
  for (const [name, { request, finished }] of session.streams) {
    if (!finished && request?.digest === digest) return name
  }
  return undefined
}

function retire (session: MemorySession, name: string): void {
  session.retired.push(name)
  if (session.retired.length > MOST_RETIRED) session.streams.delete(session.retired.shift()!)
}

function isRetained (entries: readonly Entry[], id: EventId): boolean {
  const entry = entries[firstAbove(entries, id.seq - 1)]
  return entry !== undefined && sameEvent(entry.event.id, id)
}

/** Index of the first entry whose number is above `seq`. */
function firstAbove (entries: readonly Entry[], seq: number): number {
  let low = 0
  let high = entries.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (entries[middle]!.event.id.seq <= seq) low = middle + 1
    else high = middle
  }
  return low
}
