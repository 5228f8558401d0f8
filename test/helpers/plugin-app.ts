import type { AddressInfo } from 'node:net'
import { Writable } from 'node:stream'
import { McpServer } from '@modelcontextprotocol/server'
import Fastify from 'fastify'
import type { FastifyInstance, FastifyServerOptions } from 'fastify'
import { buildServer } from '../../examples/sdk2.ts'
import mcpResume from '../../lib/index.ts'
import type { McpResumeOptions } from '../../lib/index.ts'
import { connectRedis, keyPrefix, redisUrl } from './redis.ts'
import type { Owner } from './teardown.ts'

/** Where the session log is. */
export type Backend = 'redis' | 'memory'

export const backends: readonly Backend[] = ['redis', 'memory']

/** A replica inside the test's process: its handlers and its `app.mcp` are within reach. */
export interface PluginApp {
  readonly app: FastifyInstance
  readonly url: string
  /** What it has logged so far. */
  readonly log: readonly any[]
}

export interface AppOptions extends Partial<McpResumeOptions> {
  /** Another Redis than the shared one, or the way to it through a fault proxy. */
  redisUrl?: string
  /** Options of Fastify itself. */
  fastify?: FastifyServerOptions
  /** The host's own hooks: runs before the plugin is registered. */
  before?: (app: FastifyInstance) => unknown
}

/** Runs one `tools/call`; the text is its result. */
export type RunTool = (call: ToolCall) => Promise<string>

export interface ToolCall {
  readonly name: string
  readonly args: Record<string, any>
  readonly signal: AbortSignal
  /** Sends `data` in a log message on the request's stream. */
  emit (data: unknown): Promise<void>
  /** Sends `data` in a log message on the standalone stream. */
  announce (data: unknown): Promise<void>
}

/** One replica on a free port; closed at teardown. */
export async function startApp (t: Owner, backend: Backend, options: AppOptions = {}): Promise<PluginApp> {
  const { redisUrl: url, fastify, before, ...given } = options
  const keys = backend === 'redis' ? { keyPrefix: given.keyPrefix ?? keyPrefix(t), redis: await connectRedis(t, url) } : {}
  const log: unknown[] = []
  const stream = new Writable({
    write (line: Buffer, _encoding, done) {
      log.push(JSON.parse(line.toString()))
      done()
    }
  })
  const app = Fastify({ return503OnClosing: false, logger: { level: 'info', stream }, ...fastify })
  t.teardown(() => app.close())
  await before?.(app)
  await app.register(mcpResume, {
    server: () => buildServer({ replicaId: () => app.mcp.replicaId, count: async () => 0 }),
    graceMs: 0,
    ...given,
    ...keys
  })
  await app.listen({ host: '127.0.0.1', port: 0 })
  return { app, log, url: `http://127.0.0.1:${(app.server.address() as AddressInfo).port}/mcp` }
}

/** Two replicas on one log; of the in-process log there is only one replica, which stands for both. */
export async function startPair (t: Owner, backend: Backend, options: AppOptions = {}): Promise<[PluginApp, PluginApp]> {
  if (backend === 'memory') {
    const app = await startApp(t, backend, options)
    return [app, app]
  }
  const shared = { keyPrefix: keyPrefix(t), redisUrl: redisUrl(), ...options }
  return [await startApp(t, backend, shared), await startApp(t, backend, shared)]
}

/** A server whose every tool is `run`; option `server` of `startApp`. */
export function toolServer (run: RunTool): () => McpServer {
  return () => {
    const mcp = new McpServer({ name: 'test', version: '1' }, { capabilities: { logging: {}, tools: {} } })
    mcp.server.setRequestHandler('tools/call', async ({ params }, ctx) => {
      const message = (data: unknown) => ({ level: 'info' as const, data })
      const text = await run({
        name: params.name,
        args: params.arguments ?? {},
        signal: ctx.mcpReq.signal,
        emit: data => ctx.mcpReq.notify({ method: 'notifications/message', params: message(data) }),
        announce: data => mcp.sendLoggingMessage(message(data), ctx.sessionId)
      })
      return { content: [{ type: 'text', text }] }
    })
    return mcp
  }
}
