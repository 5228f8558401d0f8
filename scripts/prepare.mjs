// Before `npm test`, `npm run demo` and `npm run bench`: installs what is missing, so that these are
// the only commands a fresh clone needs.
import { spawnSync } from 'node:child_process'
import { existsSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { answers, findRedis, which } from './redis.mjs'

const root = fileURLToPath(new URL('..', import.meta.url))

installDependencies()
await provideRedis()

function installDependencies () {
  if (!dependenciesAreStale()) {
    say('node_modules is up to date')
    return
  }
  say('node_modules is missing or older than package-lock.json: npm ci')
  // The development packages are the point here, whatever NODE_ENV says.
  if (!run('npm', ['ci', '--include=dev', '--no-audit', '--no-fund'])) fail('npm ci failed')
}

// npm writes node_modules/.package-lock.json when it has finished.
function dependenciesAreStale () {
  const installed = statSync(`${root}node_modules/.package-lock.json`, { throwIfNoEntry: false })
  return installed === undefined || installed.mtimeMs < statSync(`${root}package-lock.json`).mtimeMs
}

async function provideRedis () {
  const found = findRedis()
  switch (found?.kind) {
    case 'url':
      await answers(found.url, 3000).catch(error => fail(`REDIS_URL is set, but no Redis answers there: ${error.message}`))
      return say('Redis: the one at REDIS_URL')
    case 'program':
      return say(`Redis: ${found.program}`)
    case 'compose':
      return say('Redis: Docker Compose')
  }
  installRedis()
  const installed = findRedis()
  if (installed?.kind !== 'program') fail('no Redis found: install redis-server or valkey-server, or start Docker, or set REDIS_URL')
  say(`Redis: ${installed.program}`)
}

function installRedis () {
  if (which('apt-get') && process.getuid?.() === 0) {
    say('no Redis found: apt-get install redis-server')
    withoutServiceStart(() => {
      // A broken list of some other source is no reason to stop; the install will tell.
      run('apt-get', ['update', '-qq'])
      run('apt-get', ['install', '-y', '-qq', '--no-install-recommends', 'redis-server'])
    })
  } else if (which('brew')) {
    say('no Redis found: brew install redis')
    run('brew', ['install', 'redis'])
  }
}

// Debian starts a service that it installs; what is wanted is the program, not one more server on
// port 6379. A policy-rc.d that says 101 is Debian's way to forbid it.
function withoutServiceStart (install) {
  const policy = process.env.POLICY_RC_D ?? '/usr/sbin/policy-rc.d'
  const ours = !existsSync(policy)
  if (ours) writeFileSync(policy, '#!/bin/sh\nexit 101\n', { mode: 0o755 })
  try {
    install()
  } finally {
    if (ours) rmSync(policy)
  }
  if (existsSync('/run/systemd/system')) run('systemctl', ['disable', '--quiet', 'redis-server'])
}

function run (program, args) {
  return spawnSync(program, args, {
    cwd: root,
    stdio: 'inherit',
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' }
  }).status === 0
}

function say (text) {
  console.log(`prepare: ${text}`)
}

function fail (text) {
  console.error(`prepare: ${text}`)
  process.exit(1)
}
