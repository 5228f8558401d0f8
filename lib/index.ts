import type { FastifyInstance } from 'fastify'
import fp from 'fastify-plugin'
import { Redis } from 'ioredis'
import { Carriers } from './carriers.ts'
import { newCounters, type Counters } from './counters.ts'
import { Endpoint } from './http/endpoint.ts'
import { registerRoutes } from './http/routes.ts'
import { Streams } from './http/streams.ts'
import { McpHost } from './host.ts'
import { LoneLease, RedisLease, type Lease } from './lease.ts'
import { Keys } from './log/keys.ts'
import type { Log } from './log/log.ts'
import { MemoryLog } from './log/memory-log.ts'
import { parseHint } from './log/redis-format.ts'
import { RedisLog, type RedisClient } from './log/redis-log.ts'
import { randomText } from './log/tags.ts'
import { readOptions, type Config, type McpResumeOptions } from './options.ts'
import { LoneReplica, RedisReplica, type Replica } from './replica.ts'
import { Outbox } from './outbox.ts'
import type { Context } from './session/context.ts'
import { Inbox } from './session/inbox.ts'
import type { LiveSession } from './session/live-session.ts'
import { ServerRequests } from './session/request-ids.ts'
import { Sessions } from './session/sessions.ts'
import { Watch } from './session/watch.ts'

export type { LossAnswer, McpResumeOptions } from './options.ts'
export type { Retention } from './log/log.ts'
export type { Counter, Counters } from './counters.ts'
export type { McpHost, Notification, SessionInfo } from './host.ts'
export { formatEventId, parseEventId, type EventId } from './event-id.ts'
export { decideResume, type Decision, type View } from './resume.ts'

declare module 'fastify' {
  interface FastifyInstance {
    mcp: McpHost
  }
}

/** Serves MCP over Streamable HTTP with sessions that any replica can resume. */
async function mcpResume (app: FastifyInstance, options: McpResumeOptions): Promise<void> {
  const config = readOptions(options)
  const carriers = new Carriers()
  const counters = newCounters()
  const warn = (details: object, text: string): void => app.log.warn(details, `fastify-mcp-resume: ${text}`)
  const { log, replica, lease, closeRedis } = connect(app, config, carriers, counters)
  const { maxQueuedBytes } = config
  const outbox = new Outbox({ log, replica: replica.id, carriers, counters, maxQueuedBytes, warn })
  const requests = new ServerRequests<LiveSession>(replica.id)
  const makeServer: Context['makeServer'] = sessionId => config.server({ sessionId })
  const context: Context = { log, replica: replica.id, requests, outbox, counters, makeServer, warn }
  const sessions = new Sessions({ ...config, context, replica, carriers })
  const inbox = new Inbox({ context, replica, sessions, sessionTtlMs: config.sessionTtlMs })
  const watch = new Watch({ log, replica, lease, carriers, outbox, counters, runs: (sid, stream) => sessions.runs(sid, stream), warn })
  const streams = new Streams({ config, log, replica: replica.id, carriers })

  app.decorate('mcp', new McpHost({ log, replica: replica.id, carriers, counters, outbox, sessions, patienceMs: config.patienceMs }))
  await app.register(async scope => registerRoutes(scope, new Endpoint({ config, log, sessions, inbox, streams, counters })))
  warnOf503(app)
  // In onClose it would be too late: Fastify waits for open responses before.
  app.addHook('preClose', async () => {
    streams.leaveStandalone()
    await sessions.settle(config.graceMs)
    streams.leaveAll()
    // Calls that are answered as plain JSON would hold the app as well.
    await sessions.close()
  })
  app.addHook('onClose', async () => {
    watch.close()
    await sessions.close()
    await lease.close()
    await log.close()
    await replica.close()
    closeRedis()
  })
}

/** The log and the replica, in Redis or in this process. */
function connect (app: FastifyInstance, config: Config, carriers: Carriers, counters: Counters): { log: Log, replica: Replica, lease: Lease, closeRedis: () => void } {
  const id = randomText(8)
  if (config.redis === undefined) {
    if (config.resumable) app.log.info('fastify-mcp-resume: no redis given, the session log is in this process: one replica only')
    return { log: new MemoryLog(config.retention), replica: new LoneReplica(id), lease: new LoneLease(), closeRedis: () => {} }
  }
  const keys = new Keys(config.keyPrefix)
  const ours = typeof config.redis === 'string'
  const redis: RedisClient = typeof config.redis === 'string' ? new Redis(config.redis, { maxRetriesPerRequest: 1 }) : config.redis
  if (ours) redis.on('error', error => app.log.warn({ err: error }, 'fastify-mcp-resume: Redis'))
  warnOfEviction(app, redis)
  const replica = new RedisReplica({
    id,
    redis,
    keys,
    onReconnect: () => carriers.wakeAll(),
    onMalformed: error => {
      counters.malformedMessages++
      app.log.warn({ err: error }, 'fastify-mcp-resume: a message on the bus was dropped')
    }
  })
  replica.on('hint', body => {
    const hint = parseHint(body)
    if (hint === undefined) throw new Error('malformed hint')
    carriers.hint(hint)
  })
  replica.on('taken', body => {
    const [sid, stream, connection, takeovers] = body.split(' ')
    carriers.taken(sid!, stream!, connection!, Number(takeovers))
  })
  const { retention, sessionTtlMs, commandTimeoutMs } = config
  return {
    log: new RedisLog({ redis, keys, replica: id, retention, sessionTtlMs, commandTimeoutMs }),
    replica,
    lease: new RedisLease({ redis, keys, replica: id }),
    closeRedis: () => { if (ours) redis.disconnect() }
  }
}

/** Redis evicts whole keys: sessions vanish, or their logs do. What is left is answered explicitly, but it is not kept. */
function warnOfEviction (app: FastifyInstance, redis: RedisClient): void {
  if (redis.isCluster) return
  const ask = (): void => {
    redis.config('GET', 'maxmemory-policy').then(reply => {
      const policy = (reply as string[])[1]
      if (policy !== undefined && policy !== 'noeviction') {
        app.log.warn(`fastify-mcp-resume: Redis has maxmemory-policy ${policy}, so it may evict sessions; set noeviction`)
      }
    }, () => { /* not allowed to ask */ })
  }
  if (redis.status === 'ready') ask()
  else redis.once('ready', ask)
}

/** Fastify refuses every request from the moment it starts closing, which some clients take for the end of the server. */
function warnOf503 (app: FastifyInstance): void {
  const symbol = Object.getOwnPropertySymbols(app).find(({ description }) => description === 'fastify.options')
  const options = symbol === undefined ? undefined : (app as unknown as Record<symbol, { return503OnClosing?: boolean }>)[symbol]
  if (options?.return503OnClosing !== false && options !== undefined) {
    app.log.warn('fastify-mcp-resume: set return503OnClosing: false in Fastify\'s options: its 503 during a deploy ends some MCP clients')
  }
}

export default fp(mcpResume, { fastify: '5.x', name: 'fastify-mcp-resume' })
export { mcpResume }
