import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Bench } from './bench.ts'
import type { Kind } from './servers.ts'

const file = fileURLToPath(new URL('servers.ts', import.meta.url))

/** Starts a server to be measured in a process of its own. @returns its address */
export async function startServer ({ redisUrl, keyPrefix, atEnd }: Bench, kind: Kind): Promise<string> {
  const profile = process.env.BENCH_CPU_PROF
  const child = fork(file, [kind], {
    execArgv: ['--import', 'tsx', ...profile === undefined ? [] : ['--cpu-prof', `--cpu-prof-dir=${profile}/${kind}`]],
    env: { ...process.env, REDIS_URL: redisUrl, KEY_PREFIX: keyPrefix }
  })
  atEnd(() => stop(child))
  const [port] = await Promise.race([once(child, 'message') as Promise<[number]>, once(child, 'exit').then(([code]) => {
    throw new Error(`the ${kind} server ended with ${String(code)} before it listened`)
  })])
  return `http://127.0.0.1:${port}/mcp`
}

async function stop (child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const ended = once(child, 'exit')
  child.disconnect()
  const timer = setTimeout(() => child.kill('SIGKILL'), 5000)
  await ended
  clearTimeout(timer)
}
