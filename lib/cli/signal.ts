import type { Frame, Message, Trace } from './wire.ts'

/** What a server said about a resume, in a form that a client can see. */
export interface Signal {
  readonly outcome: string
  readonly cause?: string
  readonly missed?: number
  readonly via: 'header' | 'notice' | 'event'
}

// Frames of other protocols on SSE that tell the client it has lost its place.
const EVENT_NAMES = /gap|reset|resync|expired|stale|error/i

/** Reads an `Mcp-Resume` header: a structured field item, `gap;cause=evicted;missed=12`. */
export function readHeader (value: string): Signal {
  const [outcome = '', ...parameters] = value.split(';').map(part => part.trim())
  const named = new Map(parameters.map(parameter => {
    const [name = '', text = ''] = parameter.split('=')
    return [name, text.replace(/^"|"$/g, '')]
  }))
  return signal(outcome, named.get('cause'), named.get('missed'), 'header')
}

/** The signal a frame carries, if it is one. */
export function readFrame (frame: Frame): Signal | undefined {
  for (const message of frame.messages) {
    const data = noticeData(message)
    if (data !== undefined) return signal(String(data['outcome']), data['cause'], data['missed'], 'notice')
  }
  if (frame.event !== undefined && EVENT_NAMES.test(frame.event)) return { outcome: frame.event, via: 'event' }
  return undefined
}

/** What a connection said; that something is lost, if it said so at all. */
export function signalOf ({ outcome, frames }: Pick<Trace, 'outcome' | 'frames'>): Signal | undefined {
  const signals = [...(outcome === undefined ? [] : [readHeader(outcome)]), ...frames.flatMap(frame => readFrame(frame) ?? [])]
  return signals.find(announcesLoss) ?? signals[0]
}

/** It says that the client's position is lost. */
export function announcesLoss (signal: Signal | undefined): boolean {
  return signal !== undefined && (signal.outcome === 'gap' || signal.outcome === 'future' || signal.via === 'event')
}

/** As a maintainer would quote it. */
export function quoteSignal (signal: Signal): string {
  const { outcome, cause, missed, via } = signal
  const said = [outcome, ...(cause === undefined ? [] : [`cause ${cause}`]), ...(missed === undefined ? [] : [`missed ${missed}`])]
  return `${{ header: 'Mcp-Resume', notice: 'notice', event: 'event' }[via]}: ${said.join(', ')}`
}

function noticeData (message: Message): Record<string, unknown> | undefined {
  if (message.method !== 'notifications/message') return undefined
  const data = message.params?.['data']
  if (typeof data !== 'object' || data === null || !('outcome' in data)) return undefined
  return data as Record<string, unknown>
}

function signal (outcome: string, cause: unknown, missed: unknown, via: Signal['via']): Signal {
  const count = Number(missed)
  return {
    outcome,
    via,
    ...(typeof cause === 'string' && { cause }),
    ...(missed !== undefined && Number.isSafeInteger(count) && { missed: count })
  }
}
