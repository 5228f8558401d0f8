// The processes that are measured. Forked by process.ts with the kind as the argument; not run by hand.
import { createServer, type IncomingMessage, type RequestListener, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { json } from 'node:stream/consumers'
import Fastify from 'fastify'
import { Redis } from 'ioredis'
import { NodeStreamableHTTPServerTransport } from '@modelcontextprotocol/node'
import { Server } from '@modelcontextprotocol/server'
import mcpResume from '../lib/index.ts'
import { MemoryEventStore } from './event-store.ts'
import { message } from './payload.ts'

export type Kind = 'plugin' | 'plugin-in-process' | 'sdk' | 'http' | 'xrange'

const RETENTION = { maxEvents: 20_000, maxBytes: 64 * 1024 * 1024 }

const { REDIS_URL = '', KEY_PREFIX = '' } = process.env
const port = await start(process.argv[2] as Kind)
process.send!(port)
// The parent is gone or has done with it; with --cpu-prof the profile is written on the way out.
process.once('disconnect', () => process.exit())

async function start (kind: Kind): Promise<number> {
  switch (kind) {
    case 'plugin': return await startPlugin(true)
    case 'plugin-in-process': return await startPlugin(false)
    case 'sdk': return await listen(sdkListener())
    case 'http': return await listen(writeFrames)
    case 'xrange': return await listen(replayRange(new Redis(REDIS_URL)))
  }
}

async function startPlugin (inRedis: boolean): Promise<number> {
  const app = Fastify({ return503OnClosing: false })
  await app.register(mcpResume, {
    server: makeServer,
    retention: RETENTION,
    ...inRedis && { redis: REDIS_URL, keyPrefix: KEY_PREFIX }
  })
  await app.listen({ host: '127.0.0.1', port: 0 })
  return (app.server.address() as AddressInfo).port
}

/** The SDK's transport for Node, one a session, each with its own event store. */
function sdkListener (): RequestListener {
  const transports = new Map<string, NodeStreamableHTTPServerTransport>()
  return async (request, response) => {
    let transport = transports.get(String(request.headers['mcp-session-id']))
    if (transport === undefined) {
      const made = new NodeStreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        eventStore: new MemoryEventStore(),
        onsessioninitialized: sid => { transports.set(sid, made) }
      })
      transport = made
      await makeServer().connect(transport)
    }
    await transport.handleRequest(request, response)
  }
}

/** One MCP server for both contestants: `burst` awaits each notification, `emit` names the time of each on the standalone stream. */
function makeServer (): Server {
  const server = new Server({ name: 'bench', version: '1.0.0' }, { capabilities: { tools: {}, logging: {} } })
  server.setRequestHandler('tools/call', async ({ params }, context) => {
    const { n = 0, ms = 0 } = params.arguments as { n?: number, ms?: number }
    const token = context.mcpReq._meta?.progressToken ?? 0
    if (params.name === 'burst') {
      for (let i = 1; i <= n; i++) await context.mcpReq.notify(message(token, i))
    } else if (params.name === 'emit') {
      for (let i = 1; i <= n; i++) {
        await sleep(ms)
        await server.sendLoggingMessage({ level: 'info', data: String(process.hrtime.bigint()) })
      }
    }
    return { content: [{ type: 'text', text: 'done' }] }
  })
  return server
}

/** The floor of delivery: the same frames from a bare `node:http` handler, one await for each. */
async function writeFrames (request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { n } = (await json(request) as { params: { arguments: { n: number } } }).params.arguments
  response.writeHead(200, { 'content-type': 'text/event-stream' })
  for (let i = 1; i <= n; i++) {
    const text = JSON.stringify({ jsonrpc: '2.0', ...message(0, i) })
    if (!response.write(`id: ${i}\ndata: ${text}\n\n`)) await new Promise(resolve => response.once('drain', resolve))
    await undefined
  }
  response.end('data: {"result":{}}\n\n')
}

/** The floor of a resume: one `XRANGE` after the cursor, one write. */
function replayRange (redis: Redis): RequestListener {
  return async (request, response) => {
    const key = new URL(request.url!, 'http://localhost').searchParams.get('key')!
    const entries = await redis.xrange(key, `(${String(request.headers['last-event-id'])}`, '+')
    let text = ''
    for (const [id, [, payload]] of entries) text += `id: ${id}\ndata: ${payload}\n\n`
    response.writeHead(200, { 'content-type': 'text/event-stream' }).end(text)
  }
}

async function listen (listener: RequestListener): Promise<number> {
  const server = createServer(listener)
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  return (server.address() as AddressInfo).port
}
