// The L7 story: a call of several minutes behind a balancer with an idle timer and without affinity, through a real
// HAProxy with the very configuration that docker-compose.yml uses. The idle timer of 60 s is scaled to 2 s, the
// minutes to 20 s.
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { freePort } from './helpers/port.ts'
import { keyPrefix, redisUrl } from './helpers/redis.ts'
import { startReplica } from './helpers/replica.ts'
import { initialize } from './helpers/sse-client.ts'
import { connectStock } from './helpers/stock-clients.ts'
import type { Owner } from './helpers/teardown.ts'
import { until } from './helpers/wait.ts'

const IDLE_MS = 2000
/** Longer than the idle timer apart, so that without keep-alives the line is cut before each of them. */
const TICKS = { n: 8, ms: 2500 }

interface HAProxy {
  readonly url: string
  /** Its log, a line for each request that is over. */
  readonly log: readonly string[]
}

async function startHAProxy (t: Owner, replicas: ReadonlyArray<{ url: string }>): Promise<HAProxy> {
  const port = await freePort()
  const hosts = replicas.map(({ url }, i) => [`REPLICA_${i + 1}`, new URL(url).host])
  const child = spawn('haproxy', ['-db', '-f', fileURLToPath(new URL('../examples/haproxy.cfg', import.meta.url))], {
    env: { PATH: process.env['PATH'], BIND: `127.0.0.1:${port}`, IDLE_TIMEOUT: `${IDLE_MS}ms`, ...Object.fromEntries(hosts) },
    stdio: ['ignore', 'pipe', 'pipe']
  })
  const exit = once(child, 'exit')
  t.teardown(async () => {
    child.kill('SIGKILL')
    await exit
  })
  const log: string[] = []
  for (const output of [child.stdout, child.stderr]) createInterface(output).on('line', line => log.push(line))
  const url = `http://127.0.0.1:${port}/mcp`
  await until(async () => {
    if (child.exitCode !== null) throw new Error(`haproxy ended:\n${log.join('\n')}`)
    // 400 comes from a replica: the session header is missing.
    return await fetch(url, { headers: { accept: 'text/event-stream' } }).then(({ status }) => status === 400, () => false)
  }, 'HAProxy has replicas to send to')
  return { url, log }
}

/** Requests that HAProxy cut because client or server was idle: `cD` and `sD` in its log (section 8.5 of its manual). */
function cuts ({ log }: HAProxy, method: string): string[] {
  return log.filter(line => / [cs]D-- /.test(line) && line.includes(`"${method} /mcp `))
}

const skip = spawnSync('haproxy', ['-v']).status === 0 ? false : 'HAProxy is not installed (Debian: apt-get install haproxy)'

t.test('a call of minutes behind HAProxy, three replicas, stock clients', { skip, timeout: 100_000 }, async t => {
  const env = { REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t) }
  t.jobs = 2
  await Promise.all(([['keep-alives off', 60_000, true], ['keep-alives on', 500, false]] as const).map(async ([name, keepAliveMs, isCut]) => {
    await t.test(name, { buffered: true }, async t => {
      const replicas = []
      for (let i = 0; i < 3; i++) {
        const replica = await startReplica(t, { ...env, KEEP_ALIVE_MS: keepAliveMs })
        // The first request of a process compiles; on a busy machine that may take as long as the scaled timer.
        await (await (await initialize(replica.url)).call('tick', { n: 1, ms: 0 })).response()
        replicas.push(replica)
      }
      const haproxy = await startHAProxy(t, replicas)
      await Promise.all(([1, 2] as const).map(async version => {
        const resumes: Array<[status: number, outcome: string | null]> = []
        const client = await connectStock(t, version, haproxy.url, {
          fetch: async (input, init) => {
            const headers = new Headers(init?.headers)
            // Node's pool keeps an idle socket for 4 s. The real timer is longer; the scaled one would cut such a socket
            // just as it is used again.
            headers.set('connection', 'close')
            const response = await fetch(input, { ...init, headers })
            if (headers.has('last-event-id')) resumes.push([response.status, response.headers.get('mcp-resume')])
            return response
          }
        })
        const served = new Set<string>()
        await until(async () => served.add(await client.callText('whoami')).size === 3, 'every replica has served: no affinity')

        const progress: number[] = []
        const text = await client.callText('tick', TICKS, { onprogress: ({ progress: i }) => { progress.push(i) } })
        t.equal(text, `ticked ${TICKS.n}`, `SDK ${version}: the call completes`)
        t.strictSame(progress, Array.from({ length: TICKS.n }, (_, i) => i + 1), `SDK ${version}: every progress once, in order`)

        // The listener went through the same.
        await client.callText('emit', { n: 2, ms: 0 })
        await until(() => client.notifications.length >= 2, 'the listener hears')
        t.strictSame(client.notifications.map(({ params }) => params.data), [{ i: 1 }, { i: 2 }])
        if (isCut) {
          t.ok(resumes.length >= TICKS.n, `SDK ${version}: ${resumes.length} resumes`)
          for (const [status, outcome] of resumes) t.match(`${status} ${outcome}`, /^200 resumed;/)
        } else {
          t.strictSame(resumes, [], `SDK ${version}: nobody had to come back`)
        }
        await client.close()
      }))
      if (isCut) {
        await until(() => cuts(haproxy, 'POST').length >= 2, 'HAProxy says that it cut both calls')
        await until(() => cuts(haproxy, 'GET').length >= 2, 'and their resumes')
      } else {
        // The lines of requests that are over come at once.
        await until(() => haproxy.log.filter(line => line.includes('"POST /mcp ')).length > 10, 'HAProxy has logged')
        await sleep(100)
        t.strictSame([...cuts(haproxy, 'POST'), ...cuts(haproxy, 'GET')], [])
      }
    })
  }))
})
