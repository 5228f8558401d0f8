// The load generator's side of HTTP, in the benchmark's own process: it looks for the ends of frames and little more,
// so that what is measured is the server.
import { request, type IncomingHttpHeaders, type IncomingMessage, type OutgoingHttpHeaders } from 'node:http'
import { connect } from 'node:net'

export interface Session {
  readonly url: string
  readonly headers: OutgoingHttpHeaders
}

/** What came on one stream. */
export interface Received {
  readonly frames: number
  /** From the request to the end of the stream. */
  readonly ms: number
  /** ID of the first frame. */
  readonly firstId: string
}

const VERSION = '2025-11-25'
const HEADERS = { 'content-type': 'application/json', accept: 'application/json, text/event-stream', 'mcp-protocol-version': VERSION }
const END_OF_FRAME = Buffer.from('\n\n')
const LINE_FEED = 10
const FIRST_BYTES = 4096
const TAIL_BYTES = 400
/** A server may leave the connection open after it. */
const LAST_CHUNK = '0\r\n\r\n'

export async function openSession (url: string): Promise<Session> {
  const params = { protocolVersion: VERSION, capabilities: {}, clientInfo: { name: 'bench', version: '1' } }
  const { headers } = await post({ url, headers: HEADERS }, { id: 0, method: 'initialize', params })
  const session = { url, headers: { ...HEADERS, 'mcp-session-id': headers['mcp-session-id'] as string } }
  await post(session, { method: 'notifications/initialized' })
  return session
}

/** Calls a tool and reads its stream to the end. */
export async function call (session: Session, name: string, args: object, id = 1): Promise<Received> {
  const body = { jsonrpc: '2.0', id, method: 'tools/call', params: { name, arguments: args, _meta: { progressToken: id } } }
  const received = await send(session, 'POST', session.headers, JSON.stringify(body))
  if (!received.tail.includes('"result"')) throw new Error(`a call ended without a result: ${received.tail}`)
  return received
}

/** Comes back with a cursor, on a new connection, and reads to the end. */
export async function resume (session: Session, cursor: string): Promise<Received> {
  return await send(session, 'GET', { ...session.headers, accept: 'text/event-stream', 'last-event-id': cursor })
}

/** Listens to the standalone stream; `onText` gets what comes. @returns a function that stops it */
export async function listen (session: Session, onText: (text: string) => void): Promise<() => void> {
  const incoming = await open(session.url, 'GET', { ...session.headers, accept: 'text/event-stream' })
  incoming.setEncoding('utf8').on('data', onText).on('error', () => {})
  return () => { incoming.destroy() }
}

async function post (session: Session, message: object): Promise<{ headers: IncomingHttpHeaders }> {
  const incoming = await open(session.url, 'POST', session.headers, JSON.stringify({ jsonrpc: '2.0', ...message }))
  incoming.resume()
  await new Promise(resolve => incoming.once('end', resolve))
  return incoming
}

/** On a socket of its own, below Node's HTTP client, which costs more for each frame than some contestants do. */
async function send ({ url }: Session, method: string, headers: OutgoingHttpHeaders, body = ''): Promise<Received & { tail: string }> {
  const { hostname, port, pathname, search, host } = new URL(url)
  const lines = Object.entries({ ...headers, host, connection: 'close', 'content-length': Buffer.byteLength(body) })
  const head = [`${method} ${pathname}${search} HTTP/1.1`, ...lines.map(([name, value]) => `${name}: ${String(value)}`), '', ''].join('\r\n')
  const start = performance.now()
  let frames = 0
  let first = ''
  let tail = ''
  let endsLine = false
  const socket = connect({
    host: hostname,
    port: Number(port),
    noDelay: true,
    onread: {
      buffer: Buffer.allocUnsafe(64 * 1024),
      callback: (size: number, buffer: Uint8Array) => {
        const chunk = Buffer.from(buffer.buffer, buffer.byteOffset, size)
        if (first.length < FIRST_BYTES) first += chunk.toString('latin1', 0, FIRST_BYTES)
        // A frame's end may lie on the border of two chunks.
        let from = endsLine && chunk[0] === LINE_FEED ? 1 : 0
        frames += from
        for (let at = chunk.indexOf(END_OF_FRAME, from); at !== -1; at = chunk.indexOf(END_OF_FRAME, from)) {
          frames++
          from = at + 2
        }
        endsLine = chunk[size - 1] === LINE_FEED
        tail = size < TAIL_BYTES ? (tail + chunk.toString('latin1')).slice(-TAIL_BYTES) : chunk.toString('latin1', size - TAIL_BYTES)
        if (tail.endsWith(LAST_CHUNK)) socket.destroy()
        return true
      }
    }
  })
  socket.write(head + body)
  await new Promise((resolve, reject) => socket.once('close', resolve).once('error', reject))
  const ms = performance.now() - start
  if (!first.startsWith('HTTP/1.1 200')) throw new Error(`${method} was answered ${first.slice(0, 200)}`)
  return { frames, ms, firstId: /^id: (\S+)/m.exec(first)?.[1] ?? '', tail }
}

async function open (url: string, method: string, headers: OutgoingHttpHeaders, body?: string): Promise<IncomingMessage> {
  return await new Promise((resolve, reject) => {
    const outgoing = request(url, { method, headers, agent: false }, incoming => {
      const { statusCode = 0 } = incoming
      if (statusCode < 300) resolve(incoming)
      else reject(new Error(`${method} was answered ${statusCode}`))
    })
    outgoing.once('error', reject)
    outgoing.end(body)
  })
}
