// A host as a process of its own: any option of the plugin and of Fastify, and `app.mcp` within a test's reach.
// Started by hosts.ts; what it is asked comes over the process's own channel, so also while the server closes.
import type { AddressInfo } from 'node:net'
import Fastify from 'fastify'
import { Redis } from 'ioredis'
import mcpResume from '../../lib/index.ts'
import { hostServer, type Happening } from './host-tools.ts'
import type { HostSetup, Stats } from './hosts.ts'

const { redisUrl, ownRedis = false, sdk = 2, plugin = {}, fastify = {}, shiftClockMs = 0, factoryMs = 0, capabilities } = JSON.parse(process.env['SETUP']!) as HostSetup
const happenings: Happening[] = []
const uncaught: string[] = []
let made = 0
let failures = 0
let clockShift = 0
const realNow = Date.now
Date.now = () => realNow() + clockShift
clockShift = shiftClockMs
process.on('uncaughtException', error => uncaught.push(String(error.stack)))
process.on('unhandledRejection', error => uncaught.push(String((error as Error).stack)))

const app = Fastify({ logger: { level: 'info', stream: process.stderr }, return503OnClosing: false, ...fastify } as object)
const redis = redisUrl === undefined || ownRedis ? undefined : new Redis(redisUrl)
redis?.on('error', error => app.log.warn({ err: error }, 'redis'))

const timeouts = (): number[] => [app.server.keepAliveTimeout, app.server.requestTimeout, app.server.headersTimeout, app.server.timeout]
const before = timeouts()
await app.register(mcpResume, {
  ...plugin,
  ...redisUrl === undefined ? {} : { redis: redis ?? redisUrl },
  server: async ({ sessionId }) => {
    made++
    if (factoryMs > 0) await new Promise(resolve => setTimeout(resolve, factoryMs))
    if (failures > 0) {
      failures--
      throw new Error('the factory failed on purpose')
    }
    return hostServer(sdk, happening => happenings.push(happening), sessionId, capabilities as object | undefined)
  },
  principal: request => {
    const user = request.headers['x-user']
    return typeof user === 'string' ? user : undefined
  }
})

const commands: Record<string, (...args: any[]) => unknown> = {
  mcp: async (method: string, ...args: unknown[]) => await (app.mcp as any)[method](...args),
  happenings: () => happenings,
  failFactory: (times: number) => { failures = times },
  shiftClock: (ms: number) => { clockShift = ms },
  async stats (collect: boolean): Promise<Stats> {
    if (collect) await collectGarbage()
    const { heapUsed, rss } = process.memoryUsage()
    return {
      ...app.mcp.load,
      counters: app.mcp.counters,
      made,
      heapUsed,
      rss,
      handles: process.getActiveResourcesInfo().filter(name => !/^(Timeout|Immediate|TTYWrap|PipeWrap|ConnectWrap)$/.test(name)).length,
      timers: process.getActiveResourcesInfo().filter(name => name === 'Timeout').length,
      uncaught,
      timeouts: { before, after: timeouts() },
      redis: redis?.status
    }
  },
  async close () {
    const at = performance.now()
    await app.close()
    return { ms: performance.now() - at, redis: redis?.status }
  }
}

process.on('message', ({ n, name, args }: { n: number, name: string, args: unknown[] }) => {
  Promise.resolve().then(() => commands[name]!(...args)).then(
    result => process.send?.({ n, result }),
    error => process.send?.({ n, error: String((error as Error).message) })
  )
})
// Nothing of the test's may keep the process up: a leak of the plugin's has to show.
process.channel?.unref()

async function collectGarbage (): Promise<void> {
  for (let i = 0; i < 3; i++) {
    await new Promise(resolve => setImmediate(resolve))
    globalThis.gc?.()
  }
}

await app.listen({ host: '127.0.0.1', port: 0 })
process.stdout.write(`ready http://127.0.0.1:${(app.server.address() as AddressInfo).port}/mcp replica=${app.mcp.replicaId}\n`)

process.once('SIGTERM', async () => {
  await app.close()
  redis?.disconnect()
})
