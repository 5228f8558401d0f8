// MCP servers in one file, four that resume wrongly in the ways that are common, and one that does it right. What
// happens on them happens when the test says so: messages, cuts and the steps of a running tool are method calls.
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { formatEventId, parseEventId, STANDALONE } from '../../lib/event-id.ts'
import type { Owner } from './teardown.ts'

export type NaiveMode =
  /** Integers that restart at 1 on every connection, looked up in a buffer that outlives them. */
  | 'per-connection'
  /** Integers per stream; any resume replays the stream from its first event. */
  | 'replay-all'
  /** Integers per stream; a cursor older than what is retained starts at the oldest retained event, without a word. */
  | 'clamp'
  /** Integers per stream, resumed rightly; when nothing was missed it says nothing. */
  | 'silent'
  /** This project's contract. */
  | 'correct'

export interface NaiveServer {
  readonly url: string
  /** The cursor of every GET, in order. */
  readonly gets: ReadonlyArray<string | undefined>
  /** How often `tick` was called. */
  readonly calls: number
  /** Event streams that are open now, the listener's among them. */
  readonly open: number
  readonly listening: boolean
  /** Sends log messages on the standalone streams; their data counts on: 1, 2, 3 and so on. */
  emit (n: number): void
  /** Lets the calls of `tick` with `ms: 0` take that many steps: a progress notification each, and the result. */
  advance (steps: number): void
  /** Destroys the connections of open event streams. */
  cut (which?: 'listener' | 'calls' | 'all'): void
}

export interface NaiveOptions {
  /** Events a stream keeps with `clamp` and `correct`. @default 3 */
  readonly retain?: number
}

interface Event { readonly id: string, readonly text: string, readonly offset: number }
interface Stream {
  readonly name: string
  events: Event[]
  /** Events so far; with `per-connection` those of this connection. */
  issued: number
  offset: number
  newest: string
  response: ServerResponse | undefined
  finished: boolean
}
interface Session { readonly streams: Stream[], seq: number, emitted: number }
interface Call { readonly session: Session, readonly stream: Stream, readonly request: any, step: number }

/** A server of that kind on a free port of 127.0.0.1, closed at teardown. Tools: `tick {n, ms}`, see {@link NaiveServer.advance}. */
export async function startNaiveServer (t: Owner, mode: NaiveMode, { retain = 3 }: NaiveOptions = {}): Promise<NaiveServer> {
  const sessions = new Map<string, Session>()
  const manual = new Set<Call>()
  const timers = new Set<NodeJS.Timeout>()
  const gets: Array<string | undefined> = []
  let calls = 0

  const server = createServer((request, response) => {
    response.on('error', () => {})
    handle(request, response).catch(() => response.destroy())
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(async () => {
    timers.forEach(clearInterval)
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  })
  const streams = (): Stream[] => [...sessions.values()].flatMap(({ streams }) => streams)

  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`,
    gets,
    get calls () { return calls },
    get open () { return streams().filter(({ response }) => response !== undefined).length },
    get listening () { return streams().some(({ name, response }) => name === STANDALONE && response !== undefined) },
    emit (n) {
      for (const session of sessions.values()) {
        for (let i = 0; i < n; i++) {
          append(session, session.streams[0]!, { method: 'notifications/message', params: { level: 'info', data: ++session.emitted } })
        }
      }
    },
    advance (steps) {
      for (const call of manual) for (let i = 0; i < steps; i++) step(call)
    },
    cut (which = 'all') {
      for (const stream of streams()) {
        if (which !== 'all' && (stream.name === STANDALONE) !== (which === 'listener')) continue
        // The stream is without a connection from now on, not from when the socket has noticed.
        stream.response?.destroy()
        if (stream.response !== undefined) detach(stream, stream.response)
      }
    }
  }

  async function handle (request: IncomingMessage, response: ServerResponse): Promise<void> {
    const session = sessions.get(String(request.headers['mcp-session-id']))
    if (request.method === 'POST') return post(session, response, JSON.parse(await text(request)))
    if (session === undefined) return json(response, 404, { jsonrpc: '2.0', id: null, error: { code: -32001, message: 'Session not found' } })
    if (request.method !== 'GET') return json(response, 200, {})
    const cursor = request.headers['last-event-id'] as string | undefined
    gets.push(cursor)
    if (mode === 'correct') resume(session, cursor, response)
    else resumeNaively(session, cursor, response)
  }

  async function post (session: Session | undefined, response: ServerResponse, message: any): Promise<void> {
    if (message.method === 'initialize') {
      const id = randomUUID()
      sessions.set(id, { streams: [], seq: 0, emitted: 0 })
      openStream(sessions.get(id)!, STANDALONE)
      response.setHeader('mcp-session-id', id)
      const { protocolVersion } = message.params
      return json(response, 200, { id: message.id, result: { protocolVersion, capabilities: { tools: {}, logging: {} }, serverInfo: { name: mode, version: '1' } } })
    }
    if (message.id === undefined) return json(response, 202)
    const schema = { type: 'object', properties: { n: { type: 'integer' }, ms: { type: 'integer' } }, required: ['n', 'ms'] }
    if (message.method === 'tools/list') return json(response, 200, { id: message.id, result: { tools: [{ name: 'tick', inputSchema: schema, annotations: { readOnlyHint: true } }] } })
    if (message.method !== 'tools/call' || session === undefined) return json(response, 200, { id: message.id, result: {} })
    calls++
    const call: Call = { session, stream: openStream(session, randomUUID().slice(0, 8)), request: message, step: 0 }
    attach(call.stream, response)
    // Clients resume a request only once they have an ID.
    if (mode === 'correct') response.write(`id: ${call.stream.newest}\ndata:\n\n`)
    const { ms } = message.params.arguments
    if (ms > 0) timers.add(setInterval(() => step(call), ms))
    else manual.add(call)
  }

  function step (call: Call): void {
    const { session, stream, request } = call
    const { n } = request.params.arguments
    if (stream.finished) return
    if (call.step++ < n) return append(session, stream, { method: 'notifications/progress', params: { progressToken: request.params._meta?.progressToken, progress: call.step } })
    stream.finished = true
    append(session, stream, { id: request.id, result: { content: [{ type: 'text', text: `ticked ${n}` }] } })
    stream.response?.end()
  }

  function openStream (session: Session, name: string): Stream {
    const stream: Stream = { name, events: [], issued: 0, offset: 0, newest: '', response: undefined, finished: false }
    session.streams.push(stream)
    if (mode === 'correct') stream.newest = nextId(session, stream)
    return stream
  }

  function nextId (session: Session, stream: Stream): string {
    const tag = randomUUID().slice(0, 4)
    if (mode === 'correct') return formatEventId({ seq: ++session.seq, offset: stream.offset++, stream: stream.name, tag })
    return String(++stream.issued)
  }

  function append (session: Session, stream: Stream, message: object): void {
    const { offset } = stream
    const id = stream.newest = nextId(session, stream)
    const event: Event = { id, offset, text: frame(id, message) }
    stream.events.push(event)
    if (mode === 'clamp' || mode === 'correct') stream.events = stream.events.slice(-retain)
    stream.response?.write(event.text)
  }

  function resumeNaively (session: Session, cursor: string | undefined, response: ServerResponse): void {
    // An integer does not say which stream it is from: a call that lost its connection, if there is one.
    const lost = session.streams.find(({ name, response }) => name !== STANDALONE && response === undefined)
    const stream = (cursor === undefined ? undefined : lost) ?? session.streams[0]!
    attach(stream, response)
    for (const { id, text } of stream.events) {
      if (cursor !== undefined && (mode === 'replay-all' || Number(id) > Number(cursor))) response.write(text)
    }
    if (stream.finished) response.end()
  }

  function resume (session: Session, given: string | undefined, response: ServerResponse): void {
    const cursor = parseEventId(given ?? session.streams[0]!.newest)
    const stream = session.streams.find(({ name }) => name === cursor?.stream)
    const caughtUp = stream !== undefined && stream.newest.startsWith(formatEventId(cursor!))
    if (stream === undefined || (stream.finished && caughtUp)) return json(response, 204)
    const replay = stream.events.filter(({ offset }) => offset > cursor!.offset)
    const missed = (replay[0]?.offset ?? stream.offset) - cursor!.offset - 1
    const cause = missed > 0 ? `gap;cause=evicted;missed=${missed}` : `resumed;cause=${caughtUp ? 'caught-up' : 'replay'}`
    attach(stream, response, { 'mcp-resume': given === undefined ? 'fresh' : `${cause};replay=${replay.length}` })
    response.write(`id: ${formatEventId(cursor!)}.${randomUUID().slice(0, 2)}\ndata:\n\n`)
    if (missed > 0) response.write(frame(undefined, { method: 'notifications/message', params: { level: 'error', data: { outcome: 'gap', missed } } }))
    for (const { text } of replay) response.write(text)
    if (stream.finished) response.end()
  }

  function attach (stream: Stream, response: ServerResponse, headers = {}): void {
    stream.response?.end()
    stream.response = response
    response.writeHead(200, { 'content-type': 'text/event-stream', ...headers })
    response.write(': open\n\n')
    response.on('close', () => detach(stream, response))
  }

  function detach (stream: Stream, response: ServerResponse): void {
    if (stream.response !== response) return
    stream.response = undefined
    if (mode === 'per-connection') stream.issued = 0
  }
}

function frame (id: string | undefined, message: object): string {
  return `${id === undefined ? '' : `id: ${id}\n`}data: ${JSON.stringify({ jsonrpc: '2.0', ...message })}\n\n`
}

function json (response: ServerResponse, status: number, body?: object): void {
  response.writeHead(status, body === undefined ? {} : { 'content-type': 'application/json' })
  response.end(body === undefined ? undefined : JSON.stringify({ jsonrpc: '2.0', ...body }))
}

async function text (request: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of request.setEncoding('utf8')) text += chunk
  return text
}
