import { setTimeout as sleep } from 'node:timers/promises'
import type { Answer } from './http-client.ts'
import type { Frame } from './sse-reader.ts'

/** An event of the log as a client received it. */
export interface StreamEvent {
  readonly id: string
  readonly seq: number
  readonly offset: number
  readonly stream: string
  /** The JSON-RPC message; undefined for a stream's opening. */
  readonly message: any
}

// The test's own idea of an event ID. Frames that only repeat a cursor carry a suffix and are no events.
const EVENT_ID = /^(\d+)-(\d+)-([0-9a-z]+)-[0-9a-z]{4}$/

/** The events of the log among the frames. */
export function eventsOf (frames: readonly Frame[]): StreamEvent[] {
  return frames.flatMap(({ id, message }) => {
    const parts = id === undefined ? null : EVENT_ID.exec(id)
    return parts === null ? [] : [{ id: id!, seq: Number(parts[1]), offset: Number(parts[2]), stream: parts[3]!, message }]
  })
}

/** What a client would send as `Last-Event-ID`. */
export function cursorOf (frames: readonly Frame[]): string | undefined {
  return frames.findLast(({ id }) => id !== undefined)?.id
}

/** The offsets `from` to `to`, both included. */
export function offsets (from: number, to: number): number[] {
  return Array.from({ length: Math.max(0, to - from + 1) }, (_, i) => from + i)
}

/** The data of the log messages among the events. */
export function dataOf (events: readonly StreamEvent[]): any[] {
  return events.flatMap(({ message }) => message?.method === 'notifications/message' ? [message.params.data] : [])
}

export interface FollowOptions {
  /** Reconnects, for the nth time, with the last ID received. */
  resume (cursor: string, n: number): Promise<Answer>
  /** How long to read before the nth cut. */
  cutAfterMs (n: number): number
  /** Nothing comes after this event. */
  isLast (event: StreamEvent): boolean
}

export interface Followed {
  /** What was received, over all connections in turn. */
  readonly events: StreamEvent[]
  readonly cuts: number
  /** Each `Mcp-Resume` that was not `resumed`, and each status that was not 200. */
  readonly trouble: string[]
}

/**
 * Reads a stream as an unlucky client does, from `first` on: cut after a while, back with the last ID it has processed.
 * Ends when all is there, or when a server says that nothing is left.
 */
export async function follow (first: Answer, { resume, cutAfterMs, isLast }: FollowOptions): Promise<Followed> {
  const events: StreamEvent[] = []
  const trouble: string[] = []
  const isWhole = (frames: readonly Frame[]): boolean => eventsOf(frames.slice(-1)).some(isLast)
  let cursor: string | undefined
  for (let cuts = 0, answer = first; ; answer = await resume(cursor!, cuts)) {
    const outcome = answer.headers['mcp-resume']
    if (answer.status !== 200) trouble.push(String(answer.status))
    else if (outcome !== undefined && !/^(resumed|fresh);/.test(String(outcome))) trouble.push(String(outcome))
    if (!answer.isStream) return { events, cuts, trouble }
    const { stream } = answer
    const due = performance.now() + cutAfterMs(++cuts)
    while (stream.isOpen && !isWhole(stream.frames) && performance.now() < due) {
      await sleep(Math.min(5, due - performance.now()))
    }
    answer.cut()
    await stream.ended
    events.push(...eventsOf(stream.frames))
    cursor = cursorOf(stream.frames) ?? cursor
    if (isWhole(stream.frames)) return { events, cuts, trouble }
  }
}
