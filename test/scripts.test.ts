// The scripts that a fresh clone meets first: they must choose rightly and leave nothing behind.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { cp, mkdir, readFile, rm, symlink, utimes, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import { until } from './helpers/wait.ts'

const root = fileURLToPath(new URL('..', import.meta.url))

interface Outcome { code: number | null, stdout: string, stderr: string }

async function run (script: string, args: string[], env: NodeJS.ProcessEnv): Promise<Outcome> {
  const child = spawn(process.execPath, [script, ...args], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  const [stdout, stderr, [code]] = await Promise.all([text(child.stdout), text(child.stderr), once(child, 'exit')])
  return { code, stdout, stderr }
}

function isAlive (pid: number): boolean {
  try {
    process.kill(pid, 0)
    // A container's first process may never take notice of an orphan's end.
    return !existsSync('/proc/self/stat') || !/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}

t.test('prepare', async t => {
  // A clone with a PATH that has only what the case puts there; each program notes its arguments.
  const clone = t.testdir({ bin: {}, 'package-lock.json': '{}', policy: {} })
  const bin = join(clone, 'bin')
  const calls = join(clone, 'calls')
  await cp(join(root, 'scripts'), join(clone, 'scripts'), { recursive: true })
  await symlink('/bin/sh', join(bin, 'sh'))

  async function program (name: string, body = ''): Promise<void> {
    await writeFile(join(bin, name), `#!/bin/sh\necho "${name} $*" >> ${calls}\n${body}\n`, { mode: 0o755 })
  }

  async function prepare (env: Record<string, string> = {}): Promise<Outcome & { calls: string[] }> {
    await rm(calls, { force: true })
    const outcome = await run(join(clone, 'scripts/prepare.mjs'), [], { PATH: bin, POLICY_RC_D: join(clone, 'policy/policy-rc.d'), ...env })
    const lines = existsSync(calls) ? (await readFile(calls, 'utf8')).trim().split('\n') : []
    return { ...outcome, calls: lines }
  }

  await t.test('installs packages when there are none, or older than the lock', async t => {
    const installed = join(clone, 'node_modules/.package-lock.json')
    await program('redis-server')
    await program('npm')
    t.match(await prepare(), { code: 0, calls: [/^npm ci /] })

    await mkdir(dirname(installed))
    await writeFile(installed, '{}')
    t.match(await prepare(), { code: 0, calls: [], stdout: /up to date/ })

    const later = new Date(Date.now() + 60_000)
    await utimes(join(clone, 'package-lock.json'), later, later)
    t.match(await prepare(), { code: 0, calls: [/^npm ci /] })

    await program('npm', 'exit 1')
    t.match(await prepare(), { code: 1, stderr: /npm ci failed/ })
    await utimes(installed, later, later)
  })

  await t.test('takes the first Redis there is', async t => {
    await program('docker')
    await program('apt-get', 'exit 1')
    t.match(await prepare({ REDIS_URL: process.env['REDIS_URL']! }), { code: 0, stdout: /the one at REDIS_URL/, calls: [] })
    t.match(await prepare({ REDIS_URL: 'redis://127.0.0.1:1' }), { code: 1, stderr: /REDIS_URL is set, but no Redis answers/ })
    t.match(await prepare(), { code: 0, stdout: /bin\/redis-server/, calls: [] })
    await rm(join(bin, 'redis-server'))
    await program('valkey-server')
    t.match(await prepare(), { code: 0, stdout: /bin\/valkey-server/, calls: [] })
    await rm(join(bin, 'valkey-server'))
    t.match(await prepare(), { code: 0, stdout: /Docker Compose/, calls: ['docker compose version', 'docker info'] })
  })

  await t.test('installs a Redis where there is none', { skip: process.getuid?.() !== 0 && 'only root installs' }, async t => {
    await program('docker', '[ "$1" = compose ]')
    await program('apt-get', `[ "$1" = update ] || { cat ${clone}/policy/policy-rc.d >> ${calls}; printf '' > ${bin}/redis-server; /bin/chmod +x ${bin}/redis-server; }`)
    await symlink('/bin/cat', join(bin, 'cat'))
    const outcome = await prepare()
    t.match(outcome, { code: 0, stdout: /bin\/redis-server/ })
    t.match(outcome.calls.slice(2), [/^apt-get update/, /^apt-get install .*redis-server/, '#!/bin/sh', 'exit 101'], 'without starting a service')
    t.notOk(existsSync(join(clone, 'policy/policy-rc.d')))
  })

  await t.test('says what to do when all fails', async t => {
    await rm(join(bin, 'redis-server'), { force: true })
    await program('docker', 'exit 1')
    await program('apt-get', 'exit 1')
    t.match(await prepare(), { code: 1, stderr: /no Redis found: install redis-server/ })
    await rm(join(bin, 'apt-get'))
    await program('brew', `/bin/cp ${bin}/docker ${bin}/redis-server`)
    t.match(await prepare(), { code: 0, calls: [/docker/, 'brew install redis'] })
  })
})

t.test('with-redis', async t => {
  const script = join(root, 'scripts/with-redis.mjs')
  // A Redis of the script's own, whatever this run was given; temporary files where they can be seen.
  const tmp = t.testdir()
  const env = { PATH: process.env['PATH'], TMPDIR: tmp }
  // What the command sees: prints its own pid, a stray process's and its Redis's, as JSON.
  const report = (end: string): string[] => ['-e', `
    const stray = require('node:child_process').spawn('sleep', ['600'], { stdio: 'ignore' })
    const socket = require('node:net').connect(new URL(process.env.REDIS_URL).port, '127.0.0.1')
    socket.write('INFO server\\r\\n')
    socket.once('data', data => {
      socket.destroy()
      console.log(JSON.stringify([process.pid, stray.pid, Number(/process_id:(\\d+)/.exec(data)[1])]))
      ${end}
    })`]

  async function allGone (pids: number[]): Promise<void> {
    for (const pid of pids) await until(() => !isAlive(pid), `process ${pid} has ended`)
    await until(() => readdirSync(tmp).length === 0, 'the temporary folder is gone')
  }

  await t.test('gives the status of the command and stops what it left', async t => {
    const { code, stdout } = await run(script, [process.execPath, ...report('process.exit(7)')], env)
    t.equal(code, 7)
    await allGone(JSON.parse(stdout))
  })

  await t.test('uses the Redis that is given, and the local programs', async t => {
    const { code, stdout } = await run(script, ['sh', '-c', 'echo $REDIS_URL; command -v tsx'], { ...env, REDIS_URL: 'redis://given' })
    t.equal(code, 0)
    t.equal(stdout, `redis://given\n${join(root, 'node_modules/.bin/tsx')}\n`)
  })

  await t.test('says that there is no such command', async t => {
    const { code, stderr } = await run(script, ['no-such-command'], env)
    t.equal(code, 1)
    t.match(stderr, /no-such-command/)
  })

  for (const [signal, status] of [['SIGTERM', 143], ['SIGINT', 130], ['SIGKILL', null]] as const) {
    await t.test(`leaves nothing after ${signal}`, async t => {
      const child = spawn(process.execPath, [script, process.execPath, ...report('')], { env, stdio: ['ignore', 'pipe', 'inherit'] })
      const [line] = await once(child.stdout, 'data')
      child.kill(signal)
      const [code] = await once(child, 'exit')
      t.equal(code, status)
      await allGone(JSON.parse(line))
    })
  }
})
