import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Redis } from 'ioredis'
import type { Counters, McpResumeOptions } from '../../lib/index.ts'
import { startBalancer, type Balancer } from './balancer.ts'
import type { Happening } from './host-tools.ts'
import { connectRedis, keyPrefix, redisUrl } from './redis.ts'
import type { Exit } from './replica.ts'
import type { Owner } from './teardown.ts'
import { within } from './wait.ts'

export interface HostSetup {
  redisUrl?: string
  /** The plugin gets the URL and opens the connection itself. */
  ownRedis?: boolean
  /** The SDK of its servers. */
  sdk?: 1 | 2
  /** JSON only. */
  plugin?: Partial<McpResumeOptions>
  fastify?: Record<string, unknown>
  /** The process's wall clock is that much off. */
  shiftClockMs?: number
  /** What its servers declare; everything, if not given. */
  capabilities?: Record<string, object>
  /** How long the factory takes. */
  factoryMs?: number
}

export interface Stats {
  readonly servers: number
  readonly connections: number
  readonly counters: Counters
  /** Calls of the factory. */
  readonly made: number
  readonly heapUsed: number
  readonly rss: number
  /** Sockets and the like. */
  readonly handles: number
  readonly timers: number
  /** Errors that nobody caught. */
  readonly uncaught: string[]
  /** Of the HTTP server: keepAliveTimeout, requestTimeout, headersTimeout, timeout. */
  readonly timeouts: { before: number[], after: number[] }
  /** Status of the host's own Redis client. */
  readonly redis: string | undefined
}

/** A replica in a process of its own, with its inside within reach. */
export interface Host {
  readonly url: string
  readonly id: string
  readonly pid: number
  readonly stderr: string[]
  readonly exited: Promise<Exit>
  /** Calls a method of `app.mcp`. */
  mcp (method: string, ...args: unknown[]): Promise<any>
  stats (collectGarbage?: boolean): Promise<Stats>
  /** What its tools went through. */
  happenings (): Promise<Happening[]>
  failFactory (times: number): Promise<void>
  shiftClock (ms: number): Promise<void>
  /** `app.close()`; the process stays to be asked, as far as nothing else ends it. */
  close (): Promise<{ ms: number, redis: string | undefined }>
  freeze (): void
  thaw (): void
  sigterm (): Promise<Exit>
  kill9 (): Promise<Exit>
}

const root = fileURLToPath(new URL('../..', import.meta.url))

/** Starts a host on a free port; killed, by pid, at teardown. */
export async function startHost (t: Owner, setup: HostSetup): Promise<Host> {
  const child = spawn(process.execPath, ['--expose-gc', '--import', 'tsx', 'test/helpers/host-process.ts'], {
    cwd: root,
    env: { PATH: process.env['PATH'], HOME: process.env['HOME'], SETUP: JSON.stringify(setup) },
    stdio: ['ignore', 'pipe', 'pipe', 'ipc']
  })
  const exited = new Promise<Exit>(resolve => {
    child.once('exit', (code, signal) => resolve({ code, signal }))
  })
  const stop = (signal: NodeJS.Signals): Promise<Exit> => {
    child.kill(signal)
    return exited
  }
  t.teardown(() => stop('SIGKILL'))

  const stderr: string[] = []
  createInterface(child.stderr!).on('line', line => stderr.push(line))
  const died = exited.then(({ code, signal }) => {
    throw new Error(`the host ended with ${code ?? signal}:\n${stderr.join('\n')}`)
  })
  died.catch(() => {})
  const lines = createInterface(child.stdout!)
  const [line] = await within(Promise.race([once(lines, 'line') as Promise<[string]>, died]), 'the ready line of a host', 60_000)
  const ready = /^ready (?<url>http:\S+) replica=(?<id>\S+)$/.exec(line)!.groups!

  const asked = new Map<number, { resolve: (result: any) => void, reject: (error: Error) => void }>()
  let last = 0
  child.on('message', ({ n, result, error }: { n: number, result: unknown, error?: string }) => {
    const { resolve, reject } = asked.get(n)!
    asked.delete(n)
    if (error === undefined) resolve(result)
    else reject(new Error(error))
  })
  const ask = (name: string, ...args: unknown[]): Promise<any> => {
    const n = ++last
    const answer = new Promise<any>((resolve, reject) => asked.set(n, { resolve, reject }))
    child.send({ n, name, args })
    return within(Promise.race([answer, died]), `the answer to ${name}`, 30_000)
  }
  return {
    url: ready['url']!,
    id: ready['id']!,
    pid: child.pid!,
    stderr,
    exited,
    mcp: (method, ...args) => ask('mcp', method, ...args),
    stats: (collectGarbage = false) => ask('stats', collectGarbage),
    happenings: () => ask('happenings'),
    failFactory: times => ask('failFactory', times),
    shiftClock: ms => ask('shiftClock', ms),
    close: () => ask('close'),
    freeze: () => { child.kill('SIGSTOP') },
    thaw: () => { child.kill('SIGCONT') },
    sigterm: () => stop('SIGTERM'),
    kill9: () => stop('SIGKILL')
  }
}

export interface Cluster {
  readonly hosts: Host[]
  readonly balancer: Balancer
  /** The balancer's address. */
  readonly url: string
  readonly redis: Redis
  readonly keyPrefix: string
  /** Starts one more replica, which the balancer does not know yet. */
  add (setup?: HostSetup): Promise<Host>
}

/** `size` hosts on one Redis behind a balancer that gives every single request to the next one. */
export async function startCluster (t: Owner, size: number, setup: HostSetup = {}): Promise<Cluster> {
  const prefix = keyPrefix(t)
  const url = setup.redisUrl ?? redisUrl()
  const redis = await connectRedis(t, setup.redisUrl === undefined ? undefined : url)
  const add = (more: HostSetup = {}): Promise<Host> => startHost(t, {
    ...setup, ...more, redisUrl: more.redisUrl ?? url, plugin: { keyPrefix: prefix, ...setup.plugin, ...more.plugin }
  })
  const hosts = await Promise.all(Array.from({ length: size }, () => add()))
  const balancer = await startBalancer(t, hosts.map(({ url }) => url))
  return { hosts, balancer, url: balancer.url, redis, keyPrefix: prefix, add }
}

/** The Redis keys of one session, by the names that the README gives. */
export async function sessionKeys ({ redis, keyPrefix }: Pick<Cluster, 'redis' | 'keyPrefix'>, sessionId: string): Promise<string[]> {
  const names = [`${keyPrefix}{${sessionId}}`, `${keyPrefix}{${sessionId}}:log`]
  const there = await Promise.all(names.map(name => redis.exists(name)))
  return names.filter((_, i) => there[i] === 1)
}
