// Where this machine can get a Redis from, and how the scripts reach it. Node's own modules only:
// prepare.mjs runs before anything is installed.
import { spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { accessSync, constants, statSync } from 'node:fs'
import { connect, createServer } from 'node:net'
import { delimiter, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

/**
 * The first of: REDIS_URL, a server program on the PATH, Docker Compose with a running engine.
 * @returns {{ kind: 'url', url: string } | { kind: 'program', program: string } | { kind: 'compose' } | undefined}
 */
export function findRedis () {
  const url = process.env.REDIS_URL
  if (url) return { kind: 'url', url }
  const program = findServerProgram()
  if (program) return { kind: 'program', program }
  if (hasCompose()) return { kind: 'compose' }
  return undefined
}

export function findServerProgram () {
  return which('redis-server') ?? which('valkey-server')
}

/** The path of a program, found as a shell would. */
export function which (name) {
  return (process.env.PATH ?? '').split(delimiter).filter(Boolean).map(folder => join(folder, name)).find(isProgram)
}

/** Resolves when a Redis answers at this address (any answer counts: it may want a password). */
export async function answers (url, timeoutMs) {
  const deadline = performance.now() + timeoutMs
  for (;;) {
    const failure = await ping(url).catch(error => error)
    if (failure === undefined) return
    if (performance.now() > deadline) throw failure
    await sleep(20)
  }
}

export async function freePort () {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address()
  server.close()
  await once(server, 'close')
  return port
}

function isProgram (path) {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}

// The client program alone is not enough: `docker` is often there without the plugin or the engine.
function hasCompose () {
  return which('docker') !== undefined && succeeds('docker', ['compose', 'version']) && succeeds('docker', ['info'])
}

function succeeds (program, args) {
  return spawnSync(program, args, { stdio: 'ignore', timeout: 20_000 }).status === 0
}

async function ping (url) {
  const { protocol, hostname, port } = new URL(url)
  const socket = connect({ host: hostname.replace(/^\[|\]$/g, ''), port: Number(port || 6379) })
  try {
    await once(socket, 'connect', { signal: AbortSignal.timeout(2000) })
    if (protocol === 'rediss:') return
    socket.write('PING\r\n')
    const [reply] = await once(socket, 'data', { signal: AbortSignal.timeout(2000) })
    if (reply.includes('LOADING')) throw new Error(`the Redis at ${hostname}:${port} is still loading`)
  } finally {
    socket.destroy()
  }
}
