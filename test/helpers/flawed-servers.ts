import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Owner } from './teardown.ts'

/** One way to get resuming wrong; `none` is the server that gets it right. */
export type Flaw =
  | 'none'
  /** IDs start at 1 on every connection, the buffer belongs to the session. */
  | 'per-connection counter'
  /** IDs start at 1 on every stream; each stream resumes well, but the ID does not name it. */
  | 'per-stream counter'
  /** Every resume replays the stream from its first event. */
  | 'replays everything'
  /** A cursor below the retained events starts at the oldest of them, without a word. */
  | 'clamps to the floor'
  /** Right, but a caught-up resume is silent until the next message. */
  | 'silent when caught up'
  /** A resume gets no status line. */
  | 'never answers'
  /** A resume gets 200, and then nothing. */
  | 'deaf'
  /** A resume gets what was stored, but the call goes on elsewhere. */
  | 'replays without joining'
  /** A resume gets 200 and an end. */
  | 'loops'
  /** Nothing is stored while nobody is connected. */
  | 'forgets while away'
  /** Any cursor it does not know means: nothing missed. */
  | 'trusts any cursor'
  /** Events are looked up over all sessions. */
  | 'leaks'
  /** Events have IDs, a resume is refused. */
  | 'refuses'
  /** A second connection is refused while the first is open. */
  | 'one connection only'
  /** Reads the replay, takes its time, and only then joins the stream. */
  | 'loses at hand-over'
  /** The last two events of a replay are swapped. */
  | 'shuffles'
  /** Replay filters by number alone: other streams of the session come too. */
  | 'mixes streams'
  /** A resume of a finished stream is left open. */
  | 'never finishes'
  /** A resume gets 200 and a ping every few milliseconds, for ever. */
  | 'drips'
  /** No sessions, no IDs. */
  | 'stateless'

export interface FlawedServer {
  readonly url: string
  /** Requests by method and tool name. */
  readonly calls: string[]
}

interface Stream { readonly number: number, connection: Carrier | undefined, last: Carrier | undefined, finished: boolean, issued: number }
interface Carrier { readonly response: ServerResponse, issued: number }
interface Event { readonly id: string, readonly stream: Stream, readonly message: object }
interface State { readonly id: string, readonly streams: Stream[], readonly owners: Map<string, Stream>, log: Event[], issued: number }

const RETENTION = 10
const HAND_OVER_MS = 8

/** An MCP server of its own making, on a free port, whose only fault is the one that is asked for. */
export async function startFlawedServer (t: Owner, flaw: Flaw, tools: readonly object[] = [tickTool(true)]): Promise<FlawedServer> {
  const sessions = new Map<string, State>()
  const calls: string[] = []
  const closing = new AbortController()
  const server = createServer((request, response) => {
    response.on('error', () => {})
    handle(request, response).catch(error => {
      if (!closing.signal.aborted) response.destroy(error as Error)
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(async () => {
    closing.abort()
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`, calls }

  async function handle (request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (request.method === 'POST') return post(request, response, JSON.parse(await read(request)))
    calls.push(request.method ?? '')
    const session = sessions.get(String(request.headers['mcp-session-id']))
    if (flaw === 'stateless') return json(response, 405, { error: 'no stream' })
    if (session === undefined) return json(response, 404, { jsonrpc: '2.0', id: null, error: { code: -32001, message: 'Session not found' } })
    if (request.method === 'DELETE') return json(response, 200, {})
    const cursor = request.headers['last-event-id']
    if (typeof cursor === 'string') resume(session, cursor, response)
    else listen(session, response)
  }

  async function post (request: IncomingMessage, response: ServerResponse, message: any): Promise<void> {
    calls.push(message.params?.name ?? message.method)
    const answer = (result: object): void => json(response, 200, { jsonrpc: '2.0', id: message.id, result })
    if (message.method === 'initialize') {
      const session = newState(randomUUID())
      openStream(session)
      sessions.set(session.id, session)
      if (flaw !== 'stateless') response.setHeader('mcp-session-id', session.id)
      return answer({ protocolVersion: message.params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: flaw, version: '1' } })
    }
    if (message.id === undefined) return json(response, 202, undefined)
    if (message.method === 'tools/list') return answer({ tools })
    const session = sessions.get(String(request.headers['mcp-session-id'])) ?? newState('')
    const { n, ms } = message.params.arguments
    if (message.params.name === 'emit') {
      answer({ content: [{ type: 'text', text: `emitting ${n}` }] })
      for (let i = 1; i <= n; i++) {
        await sleep(ms, undefined, { signal: closing.signal })
        send(session, session.streams[0]!, { method: 'notifications/message', params: { level: 'info', data: { i } } })
      }
      return
    }
    const stream = openStream(session)
    attach(stream, response)
    for (let i = 1; i <= n; i++) {
      if (ms > 0) await sleep(ms, undefined, { signal: closing.signal })
      const progress = message.params.name === 'dice' ? Math.random() : i
      send(session, stream, { method: 'notifications/progress', params: { progressToken: message.params._meta?.progressToken, progress } })
    }
    await sleep(ms, undefined, { signal: closing.signal })
    send(session, stream, { id: message.id, result: { content: [{ type: 'text', text: `ticked ${n}` }] } })
    stream.finished = true
    if (flaw === 'never finishes' || flaw === 'replays without joining') stream.last?.response.end()
    else stream.connection?.response.end()
  }

  function send (session: State, stream: Stream, message: object): void {
    const { connection } = stream
    if (flaw === 'forgets while away' && connection === undefined) return
    const event: Event = { id: number(session, stream), stream, message: { jsonrpc: '2.0', ...message } }
    session.log.push(event)
    session.owners.set(event.id, stream)
    if (flaw === 'clamps to the floor') session.log = session.log.slice(-RETENTION)
    if (connection !== undefined) write(connection, event)
  }

  function number (session: State, stream: Stream): string {
    if (flaw === 'per-connection counter' && stream.last !== undefined) return String(++stream.last.issued)
    if (flaw === 'per-stream counter') return String(++stream.issued)
    if (flaw === 'leaks') return `${session.id.slice(0, 8)}-${stream.number}-${++stream.issued}`
    return String(++session.issued)
  }

  function listen (session: State, response: ServerResponse): void {
    const stream = session.streams[0]!
    stream.connection?.response.end()
    attach(stream, response)
  }

  function resume (session: State, cursor: string, response: ServerResponse): void {
    if (flaw === 'never answers') return
    if (flaw === 'refuses') return json(response, 400, { error: 'Event store not configured' })
    if (flaw === 'loops' || flaw === 'deaf') return open(response, flaw === 'loops')
    if (flaw === 'drips') return drip(response)
    const log = flaw === 'leaks' ? [...sessions.values()].flatMap(({ log }) => log) : session.log
    const running = session.streams.findLast(({ finished, number }) => !finished && number > 0) ?? session.streams.at(-1)!
    const found = log.findLast(({ id, stream }) => id === cursor && (flaw !== 'per-stream counter' || stream === running))
    const stream = found?.stream ?? (flaw === 'clamps to the floor' ? session.owners.get(cursor) : undefined) ?? running
    const careless = flaw === 'per-connection counter' || flaw === 'clamps to the floor' || flaw === 'trusts any cursor' || flaw === 'replays everything' || flaw === 'mixes streams'
    if (found === undefined && !careless) return json(response, 400, { error: 'Invalid event ID' })
    if (flaw === 'one connection only' && stream.connection !== undefined) return json(response, 409, { error: 'Stream already has a connection' })
    if (stream.finished && found !== undefined && found === log.findLast(event => event.stream === stream) && flaw !== 'replays everything') {
      return flaw === 'never finishes' ? open(response, false) : json(response, 204, undefined)
    }
    const replay = select(log, stream, cursor, found)
    if (flaw === 'shuffles' && replay.length > 1) replay.push(...replay.splice(-2).reverse())
    if (flaw !== 'replays without joining' && flaw !== 'loses at hand-over') {
      stream.connection?.response.end()
      attach(stream, response)
    } else {
      head(response)
    }
    if (flaw === 'none') response.write(`id: ${cursor}\ndata:\n\n`)
    for (const event of replay) write({ response, issued: 0 }, event)
    if (stream.finished) response.end()
    if (flaw === 'loses at hand-over') setTimeout(() => stream.finished ? response.end() : attach(stream, response), HAND_OVER_MS)
  }

  function select (log: readonly Event[], stream: Stream, cursor: string, found: Event | undefined): Event[] {
    const all = log.filter(event => event.stream === stream)
    if (flaw === 'replays everything') return all
    if (flaw === 'mixes streams') return log.filter(({ id }) => Number(id) > Number(cursor))
    if (flaw === 'per-connection counter') return log.filter(({ id }) => Number(id) > Number(cursor))
    if (flaw === 'clamps to the floor') return all.filter(({ id }) => Number(id) > Number(cursor))
    return found === undefined ? [] : all.slice(all.indexOf(found) + 1)
  }

  function attach (stream: Stream, response: ServerResponse): void {
    const carrier: Carrier = { response, issued: 0 }
    stream.connection = carrier
    stream.last = carrier
    if (!response.headersSent) head(response)
    response.on('close', () => {
      if (stream.connection === carrier) stream.connection = undefined
    })
  }

  function write ({ response }: Carrier, { id, message }: Event): void {
    response.write(`${flaw === 'stateless' ? '' : `id: ${id}\n`}data: ${JSON.stringify(message)}\n\n`)
  }
}

/** `tick {n, ms}`: n progress notifications on the call's own stream, then the result. */
export function tickTool (annotated: boolean): object {
  return tool('tick', annotated)
}

/** `emit {n, ms}`: answers at once and sends n messages on the standalone stream. */
export function emitTool (annotated: boolean): object {
  return tool('emit', annotated)
}

/** As `tick`, but no two runs report the same. */
export function diceTool (): object {
  return tool('dice', true)
}

function tool (name: string, readOnlyHint: boolean): object {
  const properties = { n: { type: 'integer', minimum: 1 }, ms: { type: 'integer', minimum: 0 } }
  return { name, inputSchema: { type: 'object', properties, required: ['n', 'ms'] }, ...(readOnlyHint && { annotations: { readOnlyHint } }) }
}

function newState (id: string): State {
  return { id, streams: [], owners: new Map(), log: [], issued: 0 }
}

function openStream (session: State): Stream {
  const stream: Stream = { number: session.streams.length, connection: undefined, last: undefined, finished: false, issued: 0 }
  session.streams.push(stream)
  return stream
}

function head (response: ServerResponse): ServerResponse {
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  response.flushHeaders()
  return response
}

function open (response: ServerResponse, andEnd: boolean): void {
  head(response).write(': here\n\n')
  if (andEnd) response.end()
}

function drip (response: ServerResponse): void {
  head(response)
  const timer = setInterval(() => response.write('data: {"jsonrpc":"2.0","method":"notifications/alive"}\n\n'), 20)
  response.on('close', () => clearInterval(timer))
}

function json (response: ServerResponse, status: number, body: object | undefined): void {
  response.writeHead(status, body === undefined ? {} : { 'content-type': 'application/json' })
  response.end(body === undefined ? undefined : JSON.stringify(body))
}

async function read (request: IncomingMessage): Promise<string> {
  let text = ''
  for await (const chunk of request.setEncoding('utf8')) text += chunk
  return text
}
