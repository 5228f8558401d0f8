import { spawn } from 'node:child_process'
import { once } from 'node:events'
import t from 'tap'
import type { Command } from '../lib/cli/command.ts'
import { explainCommand, inspectCommand } from '../lib/cli/log-commands.ts'
import { formatEventId } from '../lib/event-id.ts'
import { Keys } from '../lib/log/keys.ts'
import { RedisLog } from '../lib/log/redis-log.ts'
import { connectRedis, keyPrefix, redisUrl } from './helpers/redis.ts'

const SID = 'a-session-that-is-looked-at'

const commands: Record<string, Command> = { inspect: inspectCommand, explain: explainCommand }

async function command (name: string, ...args: string[]): Promise<{ code: number, stdout: string, stderr: string }> {
  let stdout = ''
  let stderr = ''
  const code = await commands[name]!(args, {
    stdout: { write: text => { stdout += text } },
    stderr: { write: text => { stderr += text } },
    env: {}
  })
  return { code, stdout, stderr }
}

t.test('inspect and explain tell what the log holds and what the server would decide', async t => {
  const prefix = keyPrefix(t)
  const redis = await connectRedis(t)
  const keys = new Keys(prefix)
  const retention = { windowMs: 300_000, maxEvents: 5, maxBytes: 1_000_000 }
  const log = new RedisLog({ redis, keys, replica: 'replica1', retention, sessionTtlMs: 3_600_000, commandTimeoutMs: 5000 })
  await log.create(SID, {
    version: '2025-11-25',
    initialize: { clientInfo: { name: 'looker', version: '7' } },
    capabilities: {},
    principal: 'hash-of-somebody',
    initialized: false,
    logLevel: undefined,
    subscriptions: []
  }, 60_000)
  let n = 0
  const ids: string[] = []
  for (let i = 0; i < 9; i++) {
    const open = { request: { id: 'a b', method: 'tools/call', digest: 'd' }, carrier: { replica: 'replica1', connection: 'c1' } }
    const reply = await log.append(SID, {
      stream: 'abcdefgh', events: [{ tag: 'tag0', payload: i === 0 ? '' : '{}', final: false }], token: { replica: 'replica1', n: ++n }, open
    })
    if (reply.status !== 'appended') throw new Error(reply.status)
    ids.push(formatEventId(reply.events[0]!.id))
  }
  const options = ['--redis', redisUrl(), '--prefix', prefix]
  const ttl = await redis.pttl(keys.session(SID)[0])

  t.test('inspect', async t => {
    const { code, stdout } = await command('inspect', SID, ...options)
    t.equal(code, 0)
    t.match(stdout, 'protocol  2025-11-25, client looker 7, not initialized yet')
    t.match(stdout, 'head 10, floor 6')
    t.match(stdout, '5 events')
    t.match(stdout, 'evicted   5 events inside the retention window')
    t.match(stdout, `abcdefgh tools/call id "a b", newest ${ids[8]!}, evicted up to ${ids[3]!}, run by replica1, carried by replica1 c1 (fence 1)`)
    const json = await command('inspect', SID, ...options, '--json')
    t.match(JSON.parse(json.stdout), { head: 10, floor: 6, events: 5, eventsFound: 5, evictedEarly: 5 })
    t.ok(await redis.pttl(keys.session(SID)[0]) <= ttl, 'looking keeps nothing alive')
  })

  t.test('explain, for every cause', async t => {
    const cases: Array<[cursor: string, outcome: string, cause: string, words: RegExp]> = [
      [ids[8]!, 'resumed', 'caught-up', /newest event of its stream/],
      [ids[5]!, 'resumed', 'replay', /3 events follow/],
      [ids[3]!, 'resumed', 'replay', /before the first retained one/],
      [ids[1]!, 'gap', 'evicted', /2 events after it are evicted/],
      [ids[5]!.replace('tag0', 'zzzz'), 'gap', 'diverged', /issued to another event/],
      ['5-2-zzzzzzzz-tag0', 'gap', 'expired', /no such stream/],
      ['4711-2-abcdefgh-tag0', 'future', 'ahead', /above the head 10/],
      ['nonsense', 'refused', 'malformed', /no event ID/]
    ]
    for (const [cursor, outcome, cause, words] of cases) {
      const { code, stdout } = await command('explain', SID, cursor, ...options, '--json')
      t.equal(code, 0, cursor)
      t.match(JSON.parse(stdout), { cursor, outcome, cause, text: words })
    }
  })

  t.test('a log that Redis has evicted', async t => {
    await redis.del(keys.session(SID)[1])
    t.match((await command('inspect', SID, ...options)).stdout, 'WARNING   only 0 events are there')
    t.match((await command('explain', SID, ids[5]!, ...options)).stdout, 'gap, evicted')
  })

  t.test('from the shell', async t => {
    const child = spawn(process.execPath, ['--import', 'tsx', 'lib/cli/main.ts', 'explain', SID, 'nonsense', ...options], { stdio: ['ignore', 'pipe', 'inherit'] })
    let stdout = ''
    child.stdout.on('data', chunk => { stdout += chunk })
    const [code] = await once(child, 'close')
    t.match({ code, stdout }, { code: 0, stdout: 'nonsense: refused, malformed' })
  })

  t.test('what cannot be told', async t => {
    t.match(await command('inspect', 'nobody', ...options), { code: 1, stderr: /no session "nobody"/ })
    t.match(await command('inspect', ...options), { code: 2, stderr: /wants SESSION/ })
    t.match(await command('explain', SID, ...options), { code: 2, stderr: /wants SESSION and CURSOR/ })
    t.match(await command('inspect', SID, '--redis', 'redis://127.0.0.1:1'), { code: 2, stderr: /no Redis at 127\.0\.0\.1:1/ })
    t.match(await command('inspect', SID, '--redis', 'http://x'), { code: 2, stderr: /redis:\/\/ URL/ })
    t.match(await command('inspect', SID, '--bogus'), { code: 2, stderr: /bogus/ })
    t.match(await command('explain', '--help'), { code: 0, stdout: /Usage: mcp-resume explain SESSION CURSOR/ })
  })
})
