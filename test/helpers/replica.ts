import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import type { Owner } from './teardown.ts'
import { within } from './wait.ts'

/** The example server as a process of its own. */
export interface Replica {
  readonly url: string
  /** The replica's ID as its ready line gave it. */
  readonly id: string
  readonly pid: number
  /** Its log so far, one JSON line each. */
  readonly stderr: string[]
  /** Resolves when the process has ended. */
  readonly exited: Promise<Exit>
  /** Asks it to close gracefully and waits for the end. */
  sigterm (): Promise<Exit>
  kill9 (): Promise<Exit>
}

export interface Exit { code: number | null, signal: NodeJS.Signals | null }

const root = fileURLToPath(new URL('../..', import.meta.url))

/**
 * Starts `examples/server.ts` on a free port and waits for its ready line; killed, by pid, at teardown.
 * @param env the example's environment: REDIS_URL, KEY_PREFIX, WINDOW_MS, SDK…
 */
export async function startReplica (t: Owner, env: Record<string, string | number> = {}): Promise<Replica> {
  const child = spawn(process.execPath, ['--import', 'tsx', 'examples/server.ts'], {
    cwd: root,
    env: { ...baseEnvironment(), PORT: '0', ...Object.fromEntries(Object.entries(env).map(([name, value]) => [name, String(value)])) },
    stdio: ['ignore', 'pipe', 'pipe']
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
  createInterface(child.stderr).on('line', line => stderr.push(line))
  const lines = createInterface(child.stdout)
  const died = exited.then(({ code, signal }) => {
    throw new Error(`the replica ended with ${code ?? signal} before it was ready:\n${stderr.join('\n')}`)
  })
  died.catch(() => {})
  const [line] = await within(Promise.race([once(lines, 'line') as Promise<[string]>, died]), 'the ready line of a replica', 30_000)
  const ready = /^ready (?<url>http:\S+) replica=(?<id>\S+)$/.exec(line)?.groups
  if (ready === undefined) throw new Error(`not a ready line: ${line}`)
  return {
    url: ready['url']!,
    id: ready['id']!,
    pid: child.pid!,
    stderr,
    exited,
    sigterm: () => stop('SIGTERM'),
    kill9: () => stop('SIGKILL')
  }
}

// What decides a replica's behaviour comes from the test alone; a REDIS_URL of the test run would
// turn the in-process log into the Redis one unasked. NODE_OPTIONS carries tap's loaders.
function baseEnvironment (): NodeJS.ProcessEnv {
  const { PATH, HOME, TMPDIR } = process.env
  return { ...(PATH && { PATH }), ...(HOME && { HOME }), ...(TMPDIR && { TMPDIR }) }
}
