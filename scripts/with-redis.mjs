// node scripts/with-redis.mjs CMD ARGS…
// Runs CMD with REDIS_URL set, on a Redis of its own where REDIS_URL is not set already. Ends with
// CMD's status; nothing that was started here, or by CMD, is left running.
import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, mkdtempSync, openSync, readFileSync } from 'node:fs'
import { constants, tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { answers, findRedis, findServerProgram, freePort } from './redis.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))
const [command, ...args] = process.argv.slice(2)
if (command === undefined) fail('usage: node scripts/with-redis.mjs CMD ARGS…')

const signals = []
let child
for (const name of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.on(name, () => forward(name))

const keeper = spawn(process.execPath, [join(root, 'scripts', 'keeper.mjs')], { detached: true, stdio: ['pipe', 'ignore', 'inherit'] })
const keeperExit = once(keeper, 'exit')
let status = 1
try {
  const url = await startRedis()
  status = signals.length > 0 ? exitStatus(null, signals[0]) : await runCommand(url)
} catch (error) {
  console.error(`with-redis: ${error.message}`)
}
keeper.stdin.end()
await keeperExit
process.exit(status)

async function startRedis () {
  const found = findRedis()
  switch (found?.kind) {
    case 'url': return found.url
    case 'program': return startProgram(found.program)
    case 'compose': return startCompose()
    default: throw new Error('no Redis found: run `node scripts/prepare.mjs`')
  }
}

async function startProgram (program) {
  const folder = mkdtempSync(join(tmpdir(), 'with-redis-'))
  keep('folder', folder)
  const port = await freePort()
  const log = join(folder, 'log')
  const out = openSync(log, 'w')
  // Detached: Ctrl-C in a terminal must not stop it before the command has ended.
  const server = spawn(program, ['--port', String(port), '--bind', '127.0.0.1', '--dir', folder, '--save', '', '--appendonly', 'no'], {
    detached: true, stdio: ['ignore', out, out]
  })
  closeSync(out)
  keep('process', server.pid)
  const url = `redis://127.0.0.1:${port}`
  const ended = once(server, 'exit').then(() => { throw new Error(`${program} ended at once:\n${readFileSync(log, 'utf8')}`) })
  ended.catch(() => {})
  await Promise.race([answers(url, 10_000), ended])
  return url
}

async function startCompose () {
  const project = `with-redis-${process.pid}`
  keep('compose', project)
  const compose = (...args) => spawnSync('docker', ['compose', '-p', project, ...args], { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] })
  if (compose('up', '--detach', 'redis').status !== 0) throw new Error('docker compose up redis failed')
  const url = `redis://${compose('port', 'redis', '6379').stdout.trim()}`
  await answers(url, 20_000)
  return url
}

async function runCommand (url) {
  const server = process.env.REDIS_SERVER ?? findServerProgram()
  // A process group of its own, so that whatever it leaves behind can be found.
  child = spawn(command, args, {
    detached: true,
    stdio: 'inherit',
    env: {
      ...process.env,
      PATH: [join(root, 'node_modules', '.bin'), process.env.PATH].join(delimiter),
      REDIS_URL: url,
      ...(server !== undefined && { REDIS_SERVER: server })
    }
  })
  const exit = once(child, 'exit')
  if (child.pid !== undefined) keep('group', child.pid)
  return exitStatus(...await exit)
}

function keep (kind, what) {
  keeper.stdin.write(`${kind} ${what}\n`)
}

function forward (signal) {
  signals.push(signal)
  try {
    if (child?.pid !== undefined) process.kill(-child.pid, signal)
  } catch { /* it has ended meanwhile */ }
}

// As a shell counts it: 128 + the signal's number.
function exitStatus (code, signal) {
  return code ?? 128 + constants.signals[signal]
}

function fail (text) {
  console.error(text)
  process.exit(1)
}
