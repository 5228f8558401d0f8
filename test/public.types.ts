// The public types, checked by plain `tsc`: what must compile, and, after @ts-expect-error, what must not. Never run.
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import { StreamableHTTPClientTransport as StreamableHTTPClientTransport1 } from '@modelcontextprotocol/sdk/client/streamableHttp.js'
import { McpServer as McpServer1 } from '@modelcontextprotocol/sdk/server/mcp.js'
import { McpServer, Server } from '@modelcontextprotocol/server'
import fastify, { type FastifyInstance, type FastifyRequest } from 'fastify'
import { Cluster, Redis } from 'ioredis'
import {
  createResumeGuard, onReconnect, ResumeSequenceError, validateEventResume, validateResume,
  type GuardFetch, type GuardLevel, type ResumeGap, type ResumeOutcome, type ViolationKind
} from '../lib/client/index.ts'
import mcpResume, {
  decideResume, formatEventId, parseEventId, mcpResume as named,
  type Counters, type Decision, type EventId, type LossAnswer, type McpHost, type McpResumeOptions, type Notification, type Retention, type SessionInfo, type View
} from '../lib/index.ts'

type Equal<A, B> = (<T>() => T extends A ? 1 : 2) extends (<T>() => T extends B ? 1 : 2) ? true : false
const same = <A, B> (_equal: Equal<A, B>): void => {}

const info = { name: 'test', version: '1' }
const server = () => new McpServer(info)

export async function registration (app: FastifyInstance): Promise<void> {
  await app.register(mcpResume, { server })
  await app.register(named, { server })
  await fastify().register(mcpResume, { server, prefix: '/v1' })
  // @ts-expect-error a server is all that must be given
  await app.register(mcpResume, {})
  // @ts-expect-error nor can the options be left out
  await app.register(mcpResume)
  // @ts-expect-error a misspelt option
  await app.register(mcpResume, { server, keepAlive: 1000 })
}

export function servers (): McpResumeOptions[] {
  return [
    { server: () => new McpServer(info) },
    { server: async () => new McpServer(info) },
    { server: () => new Server(info) },
    { server: () => new McpServer1(info) },
    { server: ({ sessionId }) => new McpServer({ ...info, name: sessionId.toUpperCase() }) },
    // @ts-expect-error a server, not a factory
    { server: new McpServer(info) },
    // @ts-expect-error a factory of something else
    { server: () => new URL('http://localhost') },
    // @ts-expect-error a factory of nothing
    { server: () => {} }
  ]
}

export function options (redis: Redis, cluster: Cluster): McpResumeOptions[] {
  const given: McpResumeOptions = {
    server,
    redis: 'redis://localhost',
    keyPrefix: 'app:',
    path: '/mcp',
    resumable: true,
    retention: { windowMs: 60_000 },
    sessionTtlMs: 1,
    handshakeMs: 1,
    idleMs: 1,
    maxSessionsPerPrincipal: 1,
    onSessionLimit: 'refuse',
    keepAliveMs: 1,
    retryMs: 1,
    stallMs: 1,
    graceMs: 1,
    patienceMs: 1,
    commandTimeoutMs: 1,
    maxQueuedBytes: 1,
    bodyLimit: 1,
    onGap: 'reject',
    onFuture: 'terminate',
    principal: request => request.headers.authorization,
    allowedOrigins: '*',
    allowedHosts: ['a.example']
  }
  // A variable of the environment that may be unset goes in as it is.
  const env: McpResumeOptions = { server, redis: process.env['REDIS_URL'], path: undefined, retention: undefined, onGap: undefined, allowedHosts: undefined }
  same<LossAnswer, 'notice' | 'reject' | 'terminate'>(true)
  same<Retention, { readonly windowMs: number, readonly maxEvents: number, readonly maxBytes: number }>(true)
  return [
    given, env, { server, redis }, { server, redis: cluster }, { server, redis: new Redis({ protocol: 2 }) }, { server, principal: (_request: FastifyRequest) => undefined },
    // @ts-expect-error one of three answers
    { server, onGap: 'ignore' },
    // @ts-expect-error a number of ms
    { server, keepAliveMs: '15s' },
    // @ts-expect-error no client of ioredis
    { server, redis: { get: () => '' } },
    // @ts-expect-error no option of retention
    { server, retention: { maxAge: 1 } },
    // @ts-expect-error Redis is not told by host and port
    { server, redis: { host: 'localhost', port: 6379 } },
    // @ts-expect-error a principal is a text
    { server, principal: () => 7 },
    // @ts-expect-error a list, or all
    { server, allowedOrigins: 'https://a.example' }
  ]
}

export async function host (app: FastifyInstance, mcp: McpHost): Promise<void> {
  same<FastifyInstance['mcp'], McpHost>(true)
  const notification: Notification = { method: 'notifications/message', params: { level: 'info', data: 1 } }
  same<Awaited<ReturnType<typeof mcp.notify>>, void>(true)
  await app.mcp.notify('sid', notification)
  await app.mcp.notify('sid', { method: 'notifications/x' })
  // @ts-expect-error a notification is an object
  await app.mcp.notify('sid', 'notifications/x')
  // @ts-expect-error params are an object
  await app.mcp.notify('sid', { method: 'notifications/x', params: [1] })
  // @ts-expect-error a notification has no id
  await app.mcp.notify('sid', { method: 'notifications/x', id: 1 })
  const counts: number[] = [
    await mcp.broadcast(notification), await mcp.toolsChanged(), await mcp.promptsChanged(), await mcp.resourcesChanged(), await mcp.resourceUpdated('file:///a')
  ]
  const session: SessionInfo | undefined = await mcp.session('sid')
  // @ts-expect-error it may not be there
  same<typeof session.protocolVersion, string>(true)
  if (session !== undefined) {
    same<typeof session.protocolVersion, string>(true)
    same<typeof session.clientInfo, unknown>(true)
    // @ts-expect-error what is told is not to be changed
    session.initialized = false
    // @ts-expect-error nor are the subscriptions
    session.subscriptions.push('file:///b')
  }
  same<string[], Awaited<ReturnType<typeof mcp.sessions>>>(true)
  same<boolean, Awaited<ReturnType<typeof mcp.terminate>>>(true)
  same<typeof mcp.counters, Readonly<Counters>>(true)
  const { resumed, gap, future, malformedMessages } = mcp.counters
  counts.push(resumed, gap, future, malformedMessages, mcp.load.servers, mcp.load.connections, mcp.replicaId.length)
  // @ts-expect-error the counters are the plugin's
  mcp.counters.gap = 0
  // @ts-expect-error no such counter
  counts.push(mcp.counters.nothing)
}

export function decisions (view: View): string {
  const id: EventId | undefined = parseEventId('47-12-1-k3f9')
  // @ts-expect-error it may be malformed
  formatEventId(id)
  if (id === undefined) return ''
  same<ReturnType<typeof formatEventId>, string>(true)
  // @ts-expect-error an event ID is a value
  id.seq = 48
  const decision: Decision = decideResume(id, view)
  switch (decision.outcome) {
    case 'resumed':
      same<typeof decision.cause, 'replay' | 'caught-up'>(true)
      return formatEventId(decision.start)
    case 'gap':
      if (decision.cause === 'evicted') return `${decision.missed}`
      // @ts-expect-error the count is known of what was evicted only
      return `${decision.missed}`
    case 'future': return decision.cause
  }
  // All three outcomes are handled.
  return decision
}

export async function guard (url: URL): Promise<void> {
  const guard = createResumeGuard({
    onGap: async (gap: ResumeGap) => { same<typeof gap.cursor, string>(true) },
    onViolation: error => {
      same<typeof error, ResumeSequenceError>(true)
      same<typeof error.code, 'MCP_RESUME_ERR_SEQUENCE'>(true)
      same<typeof error.kind, ViolationKind>(true)
    }
  })
  const fetch: GuardFetch = guard.fetch
  const level: GuardLevel = guard.level()
  await new Client(info).connect(new StreamableHTTPClientTransport(url, { fetch: guard.fetch }))
  new StreamableHTTPClientTransport1(url, { fetch: guard.fetch }).close()
  createResumeGuard({ onGap: () => {}, onViolation: () => {}, fetch, silentMs: level.length })
  // @ts-expect-error whoever guards has to say what a gap means
  createResumeGuard({ onViolation: () => {} })
  // @ts-expect-error and what a violation means
  createResumeGuard({ onGap: () => {} })
}

export function checks (): ResumeOutcome[] {
  onReconnect(47, 48)
  onReconnect('47-12-1-k3f9', '49-13-1-0a0a', 3)
  // @ts-expect-error integers, or this project's IDs, not one of each
  onReconnect<number>(47, '48-13-1-k3f9')
  // @ts-expect-error a floor is a number
  onReconnect(47, 48, '40')
  // @ts-expect-error integers are numbers
  validateResume('47', '48', '40')
  // @ts-expect-error the floor decides between two answers
  validateResume(47, 48)
  const error: Error = new ResumeSequenceError('gap', 47, 49)
  same<ResumeOutcome, 'resumed' | 'gap' | 'rebase'>(true)
  return [validateResume(47, 48, 40), validateEventResume('47-12-1-k3f9', '49-13-1-0a0a'), error.message as 'gap']
}
