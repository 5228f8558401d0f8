import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node'
import { InMemoryEventStore } from '@modelcontextprotocol/sdk/examples/shared/inMemoryEventStore.js'
import { Server as Server1 } from '@modelcontextprotocol/sdk/server/index.js'
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js'
import { CallToolRequestSchema, ListToolsRequestSchema } from '@modelcontextprotocol/sdk/types.js'
import { Server as Server2 } from '@modelcontextprotocol/server'
import type { EventStore, JSONRPCMessage } from '@modelcontextprotocol/server'
import t from 'tap'
import { probe } from '../lib/cli/probe.ts'
import type { ProbeOptions, Report } from '../lib/cli/probe.ts'
import { exitCodeOf } from '../lib/cli/report.ts'
import { emitTool, tickTool } from './helpers/flawed-servers.ts'
import { keyPrefix, redisUrl } from './helpers/redis.ts'
import { startReplica } from './helpers/replica.ts'
import type { Owner } from './helpers/teardown.ts'

t.jobs = 4

const TOOLS = { tools: [tickTool(true), emitTool(true)] }
const ARGS = { n: 12, ms: 30 }
const RETAINED = 50
const WANTED = [{ tool: 'tick', args: ARGS }, { tool: 'emit', args: ARGS }]

t.test('@modelcontextprotocol/sdk 1.x with its example event store', async t => {
  const url = await serve(t, async session => {
    const transport = new StreamableHTTPServerTransport({ sessionIdGenerator: () => session, eventStore: new InMemoryEventStore() })
    const server = new Server1({ name: 'sdk 1.x', version: '1' }, { capabilities: { tools: {}, logging: {} } })
    server.setRequestHandler(ListToolsRequestSchema, () => TOOLS as never)
    server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => runTool(params, {
      progress: (progress, progressToken) => extra.sendNotification({ method: 'notifications/progress', params: { progressToken, progress } }),
      announce: i => server.sendLoggingMessage({ level: 'info', data: { i } })
    }))
    // The SDK's own types disagree under exactOptionalPropertyTypes.
    await server.connect(transport as never)
    return (request, response) => transport.handleRequest(request, response)
  })
  const report = await diagnose(url, 1200)

  t.match(verdicts(report), {
    'unique IDs': 'correct',
    'exact cursor': 'correct',
    'caught up': 'correct',
    'second drop': 'correct',
    'half-open': 'correct',
    // Every one of these gets 200 and a stream that is registered under no name.
    'finished stream': 'hang',
    'ahead of the head': 'hang',
    garbage: 'hang',
    'other session': 'hang',
    // The store takes the name of the standalone stream, `_GET_stream`, for the empty name.
    'exact cursor, standalone': 'hang',
    'caught up, standalone': 'hang'
  }, 'request streams resume; finished ones, unknown cursors and the standalone stream do not')
  t.equal(exitCodeOf(report), 1)
})

t.test('@modelcontextprotocol/node 2.x with an ordered event store', async t => {
  const report = await diagnose(await serveNode2(t, 0), 5000)

  t.match(verdicts(report), {
    'unique IDs': 'correct',
    'exact cursor': 'correct',
    'caught up': 'correct',
    'second drop': 'correct',
    'busy stream': 'correct',
    'half-open': 'explicit refusal',
    'finished stream': 'correct',
    'first event': 'correct',
    'older than retained': 'explicit refusal',
    'ahead of the head': 'explicit refusal',
    garbage: 'correct',
    'exact cursor, standalone': 'correct',
    'caught up, standalone': 'correct',
    'half-open, standalone': 'explicit refusal'
  })
  t.equal(exitCodeOf(report), 0, 'it never leaves a client in the dark')
})

t.test('@modelcontextprotocol/node 2.x with a store that takes its time', async t => {
  const report = await diagnose(await serveNode2(t, 5), 5000)

  t.match(verdicts(report), { 'unique IDs': 'correct', 'busy stream': 'silent gap' },
    'what is stored while a replay is read, and before the connection is registered, is written to nobody')
  t.match(report.causes.join('\n'), /hand-over from replay to live/)
  t.equal(exitCodeOf(report), 1)
})

t.test('the example server of this package', async t => {
  // So few that the flood pushes its own beginning out.
  const { url } = await startReplica(t, { MAX_EVENTS: 60, LOG_LEVEL: 'fatal' })
  const report = await diagnose(url, 5000)

  t.match(verdicts(report), {
    'unique IDs': 'correct',
    'exact cursor': 'correct',
    'caught up': 'correct',
    'second drop': 'correct',
    'half-open': 'correct',
    'busy stream': 'correct',
    'finished stream': 'correct',
    'first event': 'correct',
    'older than retained': 'correct',
    'ahead of the head': 'correct',
    garbage: 'correct',
    'other session': 'explicit refusal',
    'exact cursor, standalone': 'correct',
    'caught up, standalone': 'correct',
    'second drop, standalone': 'correct',
    'half-open, standalone': 'correct',
    'first event, standalone': 'correct',
    'ahead of the head, standalone': 'correct'
  })
  t.same(report.causes, [])
  t.same(report.scenarios.flatMap(({ judgement }) => judgement.weaknesses), [])
  const signals = Object.fromEntries(report.scenarios.map(({ name, seen }) => [name, seen.resumes[0]?.signal]))
  t.match(signals['older than retained'], { outcome: 'gap', cause: 'evicted' })
  t.match(signals['ahead of the head'], { outcome: 'future', cause: 'ahead' })
  t.equal(exitCodeOf(report), 0)
})

t.test('two of its replicas on one Redis, and an older protocol', async t => {
  const env = { REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t), LOG_LEVEL: 'fatal' }
  const [a, b] = await Promise.all([startReplica(t, env), startReplica(t, env)])
  const report = await diagnose(a.url, 5000, { url2: new URL(b.url), protocol: '2025-06-18', floodEvents: 0 })

  t.match(verdicts(report), {
    'exact cursor': 'correct',
    'other replica': 'correct',
    'exact cursor, standalone': 'correct',
    'other replica, standalone': 'correct'
  })
  t.same(report.causes, [])
  t.equal(exitCodeOf(report), 0)
})

t.test('the example server with resuming switched off', async t => {
  const { url } = await startReplica(t, { RESUMABLE: 0, LOG_LEVEL: 'fatal' })
  const report = await diagnose(url, 5000)
  t.equal(report.summary, 'nothing promised')
  t.same(verdicts(report), { 'exact cursor': 'not offered' })
})

function serveNode2 (t: Owner, latencyMs: number): Promise<string> {
  return serve(t, async session => {
    const transport = new NodeStreamableHTTPServerTransport({ sessionIdGenerator: () => session, eventStore: orderedStore(latencyMs) })
    const server = new Server2({ name: 'node 2.x', version: '1' }, { capabilities: { tools: {}, logging: {} } })
    server.setRequestHandler('tools/list', () => TOOLS as never)
    server.setRequestHandler('tools/call', ({ params }, { mcpReq }) => runTool(params, {
      progress: (progress, progressToken) => mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress } }),
      announce: i => server.sendLoggingMessage({ level: 'info', data: { i } })
    }))
    await server.connect(transport)
    return (request, response) => transport.handleRequest(request, response)
  })
}

/** Numbers a session's events over all streams and keeps the newest ones: what the 2.x packages leave to the host. */
function orderedStore (latencyMs: number): EventStore {
  const events: Array<{ id: string, stream: string, message: JSONRPCMessage }> = []
  let issued = 0
  return {
    async storeEvent (stream, message) {
      const id = String(++issued)
      events.push({ id, stream, message })
      if (events.length > RETAINED) events.shift()
      return id
    },
    async getStreamIdForEventId (id) {
      return events.find(event => event.id === id)?.stream
    },
    async replayEventsAfter (lastId, { send }) {
      const at = events.findIndex(event => event.id === lastId)
      const { stream } = events[at]!
      const found = events.slice(at + 1)
      if (latencyMs > 0) await sleep(latencyMs)
      for (const event of found) {
        if (event.stream === stream) await send(event.id, event.message)
      }
      return stream
    }
  }
}

async function diagnose (url: string, timeoutMs: number, options: Partial<ProbeOptions> = {}): Promise<Report> {
  return probe({ url: new URL(url), headers: {}, protocol: '2025-11-25', timeoutMs, wanted: WANTED, floodEvents: 100, log: () => {}, ...options })
}

function verdicts (report: Report): Record<string, string> {
  return Object.fromEntries(report.scenarios.map(({ name, carrier, judgement }) =>
    [carrier === 'standalone' ? `${name}, standalone` : name, judgement.verdict]))
}

async function runTool ({ name, arguments: args, _meta: meta }: any, host: {
  progress (progress: number, token: string | number): Promise<void>
  announce (i: number): Promise<void>
}): Promise<{ content: Array<{ type: 'text', text: string }> }> {
  const { n, ms } = args
  if (name === 'emit') {
    const emitting = async (): Promise<void> => {
      for (let i = 1; i <= n; i++) {
        await sleep(ms)
        await host.announce(i)
      }
    }
    // The session may be gone before the last one.
    emitting().catch(() => {})
    return { content: [{ type: 'text', text: `emitting ${n}` }] }
  }
  for (let i = 1; i <= n; i++) {
    await sleep(ms)
    await host.progress(i, meta.progressToken)
  }
  await sleep(ms)
  return { content: [{ type: 'text', text: `ticked ${n}` }] }
}

type Handle = (request: IncomingMessage, response: ServerResponse) => Promise<void>

/** A host with one transport per session, as the SDKs' own examples have it. */
async function serve (t: Owner, open: (session: string) => Promise<Handle>): Promise<string> {
  const sessions = new Map<string, Handle>()
  const server = createServer((request, response) => {
    const known = request.headers['mcp-session-id']
    const session = typeof known === 'string' ? known : randomUUID()
    const handle = async (): Promise<void> => {
      const handler = sessions.get(session) ?? (known === undefined ? await open(session) : undefined)
      if (handler === undefined) {
        response.writeHead(404, { 'content-type': 'application/json' })
        response.end('{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}')
        return
      }
      sessions.set(session, handler)
      await handler(request, response)
    }
    handle().catch(() => response.destroy())
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(async () => {
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`
}
