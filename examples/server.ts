// One replica. Any number of them behind any balancer serve the same sessions from one Redis.
//   REDIS_URL=redis://127.0.0.1:6379 PORT=3000 npm start
import type { AddressInfo } from 'node:net'
import Fastify from 'fastify'
import { Redis } from 'ioredis'
import mcpResume from '../lib/index.ts'
import { readEnvironment } from './environment.ts'
import type { Host } from './tools.ts'

const environment = readEnvironment(process.env)
const { buildServer } = await (environment.sdk === 1 ? import('./sdk1.ts') : import('./sdk2.ts'))

const app = Fastify({
  // stdout carries the ready line only.
  logger: { level: environment.logLevel, stream: process.stderr },
  // Clients that get a 503 during a deploy give up for good; what still arrives is served.
  return503OnClosing: false
})

const redis = environment.redisUrl === undefined ? undefined : new Redis(environment.redisUrl)
redis?.on('error', error => app.log.warn({ err: error }, 'redis'))

const hits = new Map<string, number>()
const host: Host = {
  replicaId: () => app.mcp.replicaId,
  count: key => redis === undefined ? countHere(key) : redis.incr(`${environment.hitPrefix}${key}`)
}

await app.register(mcpResume, {
  ...environment.options,
  // Design B keeps nothing in Redis, and the plugin refuses the two together.
  ...(redis !== undefined && environment.options.resumable !== false && { redis }),
  server: () => buildServer(host),
  principal: request => {
    const user = request.headers['x-user']
    return typeof user === 'string' ? user : undefined
  }
})

// Balancers stop sending new requests when this says 503; what still arrives is served all the same.
let closing = false
app.get('/healthz', { logLevel: 'warn' }, (_request, reply) => {
  return reply.code(closing ? 503 : 200).send({ replica: app.mcp.replicaId })
})

await app.listen({ host: environment.host, port: environment.port })
const { port } = app.server.address() as AddressInfo
process.stdout.write(`ready http://${environment.host}:${port}/mcp replica=${app.mcp.replicaId}\n`)

process.once('SIGTERM', close)
process.once('SIGINT', close)

// No process.exit: with everything closed nothing keeps the process up, and a leak shows.
async function close (): Promise<void> {
  closing = true
  await app.close()
  redis?.disconnect()
}

async function countHere (key: string): Promise<number> {
  const count = (hits.get(key) ?? 0) + 1
  hits.set(key, count)
  return count
}
