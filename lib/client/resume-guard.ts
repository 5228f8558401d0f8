import { createParser } from 'eventsource-parser'
import type { EventSourceMessage } from 'eventsource-parser'
import { parseEventId, STANDALONE } from '../event-id.ts'
import { accept, ANNOUNCED, levelOf, LIVE, moveTo, SIGNALLED, SILENT } from './sequence.ts'
import type { GuardLevel, Sequence } from './sequence.ts'
import { ResumeSequenceError } from './validate-resume.ts'
import type { ViolationKind } from './validate-resume.ts'

/** `fetch`, as the stock SDK clients take it in their `fetch` option. */
export type GuardFetch = (url: string | URL, init?: RequestInit) => Promise<Response>

/** An announced loss: the server says that it cannot go on where the client stopped. */
export interface ResumeGap {
  /** `gap` or `future`, as in `Mcp-Resume`. */
  readonly outcome: string
  /** All that the server said, e.g. `gap;cause=evicted;missed=12`. */
  readonly signal: string
  /** The last ID that was passed on before; empty for a first connection. */
  readonly cursor: string
  /** The stream, as in an event ID. */
  readonly stream: string
}

export interface ResumeGuardOptions {
  /**
   * Called on an announced gap and awaited before any later message of that stream is passed on: list again, read again.
   * If it rejects, the stream fails with its reason and the next reconnect announces the gap again.
   */
  readonly onGap: (gap: ResumeGap) => void | Promise<void>
  /**
   * Called once when a stream breaks its sequence, awaited before the stream fails with the same error. The guard then
   * refuses to reconnect that stream: reconcile, and go on with a new client and guard, on the same session if you like.
   */
  readonly onViolation: (error: ResumeSequenceError) => void | Promise<void>
  /** The fetch to wrap. @default globalThis.fetch */
  readonly fetch?: GuardFetch
  /**
   * How long a resumed stream may say nothing at all before that is a violation (`silent`), in milliseconds below 2^31.
   * 0 takes silence for "nothing missed". @default 5000
   */
  readonly silentMs?: number
}

export interface ResumeGuard {
  /** Goes into the `fetch` option of the transport. */
  readonly fetch: GuardFetch
  /**
   * What can be checked on a stream.
   *
   * @param stream as in {@link ResumeGap} and {@link ResumeSequenceError}; default the standalone stream
   */
  level (stream?: string): GuardLevel
}

/** A stream as the client sees it: it outlives its connections. */
interface Stream extends Sequence {
  readonly session: string | null
  /** Names the connection that carries the stream. */
  busy?: object | undefined
  /** The cursor that the client itself sent last. */
  sent?: string | null
  /** The last connection was a GET that gave the client no ID: a stock client comes back without a cursor. */
  lost?: unknown
  /** The response was passed on: silence is right. */
  done?: boolean
  /** The violation, for good. */
  error?: ResumeSequenceError
}

const CURSOR = 'last-event-id'
const EVENT_STREAM = /event-stream/
/** Whole frames from the start, and comment lines between them. */
const FRAMES = /:.*\n|[^]*?(?:\r\n|\n|\r(?!\n)){2}/gy

/**
 * Makes a `fetch` that holds the event sequence of every MCP stream as an invariant: what it passes on is in order,
 * without a repeat and without a hole that was not announced first. Use one guard per client.
 *
 * Frames pass unchanged, each only after it was judged. One of more than 64 Mi characters fails its stream with a
 * RangeError.
 *
 * @throws RangeError if `silentMs` is out of range
 */
export function createResumeGuard (options: ResumeGuardOptions): ResumeGuard {
  const { onGap, onViolation, fetch: send = fetch, silentMs = 5000 } = options
  if (!(silentMs >= 0 && silentMs < 2 ** 31)) throw RangeError('bad silentMs')
  // Idle ones in the order in which they lost their connection: stock clients come back first in, first out.
  let streams: Stream[] = []
  let count = 0

  return {
    fetch: guarded,
    level: (name = STANDALONE) => levelOf(streams.findLast((stream) => stream.name === name))
  }

  async function guarded (url: string | URL, init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers)
    const posts = init.method === 'POST'
    if (!posts && !EVENT_STREAM.test(headers.get('accept')!)) return send(url, init)

    const session = headers.get('mcp-session-id')
    const claimed = headers.get(CURSOR)
    const name = claimed ? parseEventId(claimed)?.stream : STANDALONE
    const idle = streams.filter((stream) => !posts && !stream.busy && stream.session === session)
    const lost = (stream: Stream) => !claimed && stream.lost
    const stream: Stream = idle.find((stream) => lost(stream) && !stream.error) ??
      idle.findLast((stream) => name ? stream.name === name : stream.last === claimed || stream.sent === claimed) ??
      // A violated stream's client that forgot its cursor must not end up as a second listener.
      idle.find(lost) ??
      { session, name: (!posts && name) || `request-${++count}`, last: '', phase: LIVE, seen: new Set() }
    if (stream.error) throw stream.error
    // A cursor that the client sent before its last connection is stale: what came since was passed on. Any other place
    // on the stream is the client's wish.
    if (claimed && claimed !== stream.last && claimed !== stream.sent) moveTo(stream, claimed)
    const cursor = stream.last
    if (cursor) headers.set(CURSOR, cursor)
    stream.sent = claimed
    stream.busy = headers
    streams.push(stream)

    let reader: ReadableStreamDefaultReader<Uint8Array> | undefined
    try {
      const response = await send(url, { ...init, headers })
      stream.done ||= response.status === 204
      const signal = response.headers.get('mcp-resume')!
      const [, sound, outcome] = /^(resumed|away)|^(gap|future)/.exec(signal) ?? []
      stream.phase = outcome ? ANNOUNCED : !cursor || sound || stream.done || !silentMs ? SIGNALLED : SILENT
      const gap = outcome && { outcome, signal, cursor, stream: stream.name }
      if (!response.body || !EVENT_STREAM.test(response.headers.get('content-type')!)) {
        if (gap) await onGap(gap)
        return response
      }
      reader = response.body.getReader()
      const frames = judged(gap)
      // One frame a pull and no queue: what was passed on was asked for, so the position is what the client got even if
      // the connection breaks right after; and a reader that stops stops the server.
      return new Response(new ReadableStream({
        async pull (controller) {
          const { done, value } = await frames.next()
          if (done) controller.close()
          else controller.enqueue(value)
        },
        cancel: close
      }, { highWaterMark: 0 }), response)
    } finally {
      if (!reader) close()
    }

    async function * judged (gap?: ResumeGap | ''): AsyncGenerator<Uint8Array, void> {
      const decoder = new TextDecoder()
      const events: EventSourceMessage[] = []
      const parser = createParser({ onEvent: (event) => events.push(event) })
      let held = ''
      try {
        if (gap) await onGap(gap)
        // The read then ends as if the server had ended the stream. The timer keeps no process up: a read that was aborted
        // while its last bytes arrived may stay pending for ever, and nothing would clear it.
        if (stream.phase === SILENT) setTimeout(() => { if (stream.phase === SILENT) drop() }, silentMs).unref?.()
        for (;;) {
          const { done, value } = await reader!.read()
          if (done && stream.phase === SILENT) await fail('silent')
          if (done) return
          const text = decoder.decode(value, { stream: true })
          held += text
          // Only with a line end, so that a long message in many chunks is not searched from its start for each.
          for (const frame of (/[\r\n]/.test(text) && held.match(FRAMES)) || []) {
            held = held.slice(frame.length)
            parser.feed(frame)
            for (const { id, data, event = 'message' } of events.splice(0)) {
              const message = !!data && event === 'message'
              const kind = accept(stream, id, message)
              if (kind) await fail(kind, id)
              // A message that calls no method is a response.
              stream.done ||= message && stream.name !== STANDALONE && !/"method"/.test(data)
            }
            yield new TextEncoder().encode(frame)
          }
          if (held.length > 2 ** 26) throw RangeError('event too long')
        }
      } finally {
        close()
      }
    }

    async function fail (kind: ViolationKind, received?: string): Promise<never> {
      const error = stream.error = new ResumeSequenceError(kind, stream.last, received, undefined, stream.name)
      await onViolation(error)
      throw error
    }

    function drop (): void {
      // It may have failed already, which is no news any more.
      reader?.cancel().catch(() => {})
    }

    function close (): void {
      drop()
      if (stream.busy !== headers) return
      stream.busy = undefined
      stream.phase = LIVE
      stream.lost = (reader || !claimed) && stream.last === cursor && !stream.done
      // Finished streams are forgotten with the next one that closes; what clients abandon is bounded in number.
      streams = streams.filter((other) => other !== stream && !other.done).slice(-256)
      if (stream.last || stream.name === STANDALONE) streams.push(stream)
    }
  }
}
