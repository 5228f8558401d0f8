import { spawn } from 'node:child_process'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Redis } from 'ioredis'
import { freePort } from './port.ts'
import type { Owner } from './teardown.ts'
import { until } from './wait.ts'

/** A Redis server of one test's own, which it may stop, kill, restart and fill up. */
export interface RedisServer {
  readonly url: string
  readonly port: number
  readonly pid: number
  /** Stops it as a crash would; what was not persisted is lost. */
  kill9 (): Promise<void>
  /** Freezes the process: connections stay open, nothing answers. */
  freeze (): void
  thaw (): void
  /** Starts it again on the same port with the same folder, after `kill9`. */
  restart (): Promise<void>
}

export interface RedisServerOptions {
  /** More directives, such as `{ maxmemory: '8mb', appendonly: 'yes', replicaof: '127.0.0.1 7000' }`. */
  config?: Record<string, string>
  /** The program; valkey-server does as well. */
  binary?: string
}

/** Starts a private redis-server on a free port of 127.0.0.1; it is killed, by pid, at teardown. */
export async function startRedis (t: Owner, { config = {}, binary = findBinary() }: RedisServerOptions = {}): Promise<RedisServer> {
  const folder = await mkdtemp(join(tmpdir(), 'redis-'))
  const port = await freePort()
  const url = `redis://127.0.0.1:${port}`
  const directives = Object.entries({
    port: String(port), bind: '127.0.0.1', dir: folder, save: '', appendonly: 'no', daemonize: 'no', ...config
  }).flatMap(([name, value]) => [`--${name}`, ...directiveValues(value)])

  let child: ChildProcess
  await start()
  t.teardown(async () => {
    await kill9()
    await rm(folder, { recursive: true, force: true })
  })
  return {
    url,
    port,
    get pid () { return child.pid! },
    kill9,
    freeze: () => { child.kill('SIGSTOP') },
    thaw: () => { child.kill('SIGCONT') },
    restart: start
  }

  async function start (): Promise<void> {
    child = spawn(binary, directives, { stdio: ['ignore', 'pipe', 'inherit'] })
    let log = ''
    child.stdout!.setEncoding('utf8').on('data', (text: string) => { log = (log + text).slice(-4000) })
    const failure = new Promise<never>((_resolve, reject) => {
      child.once('error', reject)
      child.once('exit', code => reject(new Error(`${binary} ended with ${code}:\n${log}`)))
    })
    failure.catch(() => {})
    await Promise.race([failure, until(answers, `${binary} answers on port ${port}`)])
  }

  async function kill9 (): Promise<void> {
    if (child.exitCode !== null || child.signalCode !== null) return
    child.kill('SIGKILL')
    await once(child, 'exit')
  }

  async function answers (): Promise<boolean> {
    const probe = new Redis(url, { lazyConnect: true, retryStrategy: () => null, maxRetriesPerRequest: 0 })
    probe.on('error', () => {})
    try {
      await probe.connect()
      return await probe.ping() === 'PONG'
    } catch {
      return false
    } finally {
      probe.disconnect()
    }
  }
}

// An empty value must reach Redis as one empty argument (`--save ''`), others as their words.
function directiveValues (value: string): string[] {
  return value === '' ? [''] : value.split(' ')
}

function findBinary (): string {
  return process.env['REDIS_SERVER'] ?? 'redis-server'
}
