import { request } from 'node:http'
import type { IncomingHttpHeaders, IncomingMessage, OutgoingHttpHeaders } from 'node:http'
import { buffer } from 'node:stream/consumers'
import { resetSocket } from './reset.ts'
import { readStream } from './sse-reader.ts'
import type { SseReader } from './sse-reader.ts'
import { within } from './wait.ts'

/** One HTTP answer; exactly one of `stream` and `body` has something. */
export interface Answer {
  readonly status: number
  readonly headers: IncomingHttpHeaders
  /** The events, when the answer is an event stream; throws otherwise. */
  readonly stream: SseReader
  readonly isStream: boolean
  /** The whole body of any other answer. */
  readonly body: string
  /** The body as JSON. */
  json (): any
  /** Destroys the socket with a reset, as a crashed client or a cut line does. */
  cut (): void
}

/** Sends a POST; `body` goes as JSON unless it is a string. Every request has a connection of its own. */
export function post (url: string, body: unknown, headers: OutgoingHttpHeaders = {}): Promise<Answer> {
  return send('POST', url, typeof body === 'string' ? body : JSON.stringify(body), {
    accept: 'application/json, text/event-stream', 'content-type': 'application/json', ...headers
  })
}

/** Sends a GET for an event stream. */
export function get (url: string, headers: OutgoingHttpHeaders = {}): Promise<Answer> {
  return send('GET', url, undefined, { accept: 'text/event-stream', ...headers })
}

export function del (url: string, headers: OutgoingHttpHeaders = {}): Promise<Answer> {
  return send('DELETE', url, undefined, headers)
}

function send (method: string, url: string, body: string | undefined, headers: OutgoingHttpHeaders): Promise<Answer> {
  const outgoing = request(url, { method, headers, agent: false })
  const answer = new Promise<Answer>((resolve, reject) => {
    // Stays for the life of the request: a cut is reported by the reader and must not be thrown here.
    outgoing.on('error', reject)
    outgoing.once('response', incoming => { toAnswer(incoming, `${method} ${url}`).then(resolve, reject) })
  })
  outgoing.end(body)
  return within(answer, `the answer to ${method} ${url}`, 30_000)
}

async function toAnswer (incoming: IncomingMessage, name: string): Promise<Answer> {
  incoming.on('error', () => {})
  const { statusCode: status = 0, headers, socket } = incoming
  const cut = (): void => { resetSocket(socket) }
  const isStream = headers['content-type']?.startsWith('text/event-stream') ?? false
  const stream = isStream ? readStream(incoming, cut) : undefined
  const body = isStream ? '' : (await buffer(incoming)).toString()
  return {
    status,
    headers,
    get stream () {
      if (stream === undefined) throw new Error(`${name} was answered ${status}, not by a stream: ${body}`)
      return stream
    },
    isStream,
    body,
    json: () => JSON.parse(body),
    cut
  }
}
