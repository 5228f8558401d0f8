// Tidies up after with-redis.mjs. Its stdin closes when that process ends, however it ends, kill -9
// included. Lines on stdin: `group PID`, `process PID`, `compose PROJECT`, `folder PATH`.
import { spawnSync } from 'node:child_process'
import { rmSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

const stop = {
  // What the command left behind: it has ended, or lost its parent.
  group: pid => { signal(-pid, 'SIGKILL') },
  process: pid => terminate(Number(pid)),
  compose: project => { spawnSync('docker', ['compose', '-p', project, 'down', '--volumes'], { stdio: 'ignore' }) },
  folder: path => { rmSync(path, { recursive: true, force: true }) }
}

const duties = []
for await (const line of createInterface(process.stdin)) duties.unshift(line)
for (const duty of duties) {
  const [, kind, what] = /^(\w+) (.+)$/.exec(duty)
  await stop[kind](what)
}

async function terminate (pid) {
  signal(pid, 'SIGTERM')
  const deadline = performance.now() + 3000
  while (signal(pid, 0)) {
    // Dead already, perhaps, with nobody to take notice: not waited for.
    if (performance.now() > deadline) return signal(pid, 'SIGKILL')
    await sleep(10)
  }
}

function signal (pid, name) {
  try {
    process.kill(pid, name)
    return true
  } catch {
    return false
  }
}
