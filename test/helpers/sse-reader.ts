import type { IncomingMessage } from 'node:http'
import { createParser } from 'eventsource-parser'

/** One block of the event stream: what stands between two blank lines. */
export interface Frame {
  id: string | undefined
  event: string | undefined
  /** undefined when there is no data line, '' when it is empty. */
  data: string | undefined
  retry: number | undefined
  /** The data read as a JSON-RPC message, when it is one. */
  message: any
  /** `performance.now()` at arrival. */
  at: number
}

/** Why a stream ended: `end` by the server in good order, `cut` otherwise. */
export type StreamEnd = 'end' | 'cut'

/** Reads one event stream as it arrives, with eventsource-parser as the judge of the bytes. */
export interface SseReader {
  /** Everything so far, also what `next` has not given yet. */
  readonly frames: readonly Frame[]
  readonly comments: readonly string[]
  /** The bytes as received. */
  readonly raw: Buffer
  readonly ended: Promise<StreamEnd>
  readonly isOpen: boolean
  /** The next frame not given yet; fails at the end of the stream or after `timeoutMs`. */
  next (timeoutMs?: number): Promise<Frame>
  /** The frames from here up to and with the first one that `predicate` accepts. */
  until (predicate: (frame: Frame) => boolean, timeoutMs?: number): Promise<Frame[]>
  /** The frames from here to the end of the stream. */
  rest (timeoutMs?: number): Promise<Frame[]>
  /** Stops taking bytes from the socket, as a slow reader does. */
  pause (): void
  resume (): void
  cut (): void
}

export function readStream (incoming: IncomingMessage, cut: () => void): SseReader {
  const frames: Frame[] = []
  const comments: string[] = []
  const chunks: Buffer[] = []
  let given = 0
  let retry: number | undefined
  // The parser reports an ID before the event of the same block; the two make one frame.
  let idOnly: Frame | undefined
  let open = true
  let wake = (): void => {}

  const parser = createParser({
    onRetry: value => { retry = value },
    onComment: comment => { comments.push(comment) },
    onId: id => { idOnly = push({ id, event: undefined, data: undefined }) },
    onEvent: ({ id, event, data }) => {
      if (idOnly !== undefined && idOnly.id === id) {
        Object.assign(idOnly, { event, data, message: parseJson(data) })
      } else {
        push({ id, event, data })
      }
      idOnly = undefined
    },
    onError: error => { throw error }
  })

  const ended = new Promise<StreamEnd>(resolve => {
    incoming.once('close', () => {
      open = false
      wake()
      resolve(incoming.complete ? 'end' : 'cut')
    })
  })
  const decoder = new TextDecoder()
  incoming.on('data', (chunk: Buffer) => {
    chunks.push(chunk)
    idOnly = undefined
    parser.feed(decoder.decode(chunk, { stream: true }))
    wake()
  })

  return {
    frames,
    comments,
    get raw () { return Buffer.concat(chunks) },
    ended,
    get isOpen () { return open },
    next,
    async until (predicate, timeoutMs = 10_000) {
      const deadline = performance.now() + timeoutMs
      const passed: Frame[] = []
      for (;;) {
        const frame = await next(deadline - performance.now())
        passed.push(frame)
        if (predicate(frame)) return passed
      }
    },
    async rest (timeoutMs = 10_000) {
      const deadline = performance.now() + timeoutMs
      for (;;) {
        if (!open) break
        await change(deadline - performance.now(), 'the end of the stream')
      }
      const from = given
      given = frames.length
      return frames.slice(from)
    },
    pause: () => { incoming.pause() },
    resume: () => { incoming.resume() },
    cut
  }

  async function next (timeoutMs = 10_000): Promise<Frame> {
    const deadline = performance.now() + timeoutMs
    for (;;) {
      const frame = frames[given]
      if (frame !== undefined) {
        given++
        return frame
      }
      if (!open) throw new Error(`the stream ended; received:\n${received()}`)
      await change(deadline - performance.now(), 'the next frame')
    }
  }

  // One reader at a time, as for any cursor.
  function change (timeoutMs: number, what: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`waited in vain for ${what}; received:\n${received()}`)), Math.max(0, timeoutMs))
      wake = () => {
        clearTimeout(timer)
        resolve()
      }
    })
  }

  function push (fields: Pick<Frame, 'id' | 'event' | 'data'>): Frame {
    const frame = { ...fields, retry, message: parseJson(fields.data), at: performance.now() }
    retry = undefined
    frames.push(frame)
    return frame
  }

  function received (): string {
    return Buffer.concat(chunks).toString().slice(-2000)
  }
}

function parseJson (data: string | undefined): unknown {
  if (!data) return undefined
  try {
    return JSON.parse(data)
  } catch {
    return undefined
  }
}
