import { parseArgs } from 'node:util'
import { Redis } from 'ioredis'
import { LogAway } from '../errors.ts'
import { parseEventId } from '../event-id.ts'
import { Keys } from '../log/keys.ts'
import { RedisLog } from '../log/redis-log.ts'
import type { Command, Io } from './command.ts'
import { describeLog, explainCursor } from './log-words.ts'

const DEFAULT_REDIS = 'redis://127.0.0.1:6379'
const DEFAULT_PREFIX = 'mcp:'
const CONNECT_MS = 3000

const OPTIONS_HELP = `  --redis URL       the servers' Redis ($REDIS_URL, else ${DEFAULT_REDIS})
  --prefix TEXT     their keyPrefix ($KEY_PREFIX, else ${DEFAULT_PREFIX})
  --json            print it as JSON
  --help            print this

Looks only: nothing is written, and no session is kept alive by it.
Exit code: 0 found, 1 no such session, 2 could not tell.
`

const INSPECT_HELP = `Usage: mcp-resume inspect SESSION [options]

Says what the log holds of a session: head, floor, bytes, streams, who runs and who carries them, and
whether events were evicted inside the retention window.

${OPTIONS_HELP}`

const EXPLAIN_HELP = `Usage: mcp-resume explain SESSION CURSOR [options]

Says which outcome a Last-Event-ID gets now, and why, by the decision that the server itself makes.

${OPTIONS_HELP}`

/** `mcp-resume inspect SESSION`. */
export const inspectCommand: Command = async (argv, io) => await run('inspect', INSPECT_HELP, ['SESSION'], argv, io, async (log, [sid], json) => {
  const found = await log.inspect(sid!)
  if (found === undefined) return undefined
  return json ? JSON.stringify(found, null, 2) : describeLog(sid!, found)
})

/** `mcp-resume explain SESSION CURSOR`. */
export const explainCommand: Command = async (argv, io) => await run('explain', EXPLAIN_HELP, ['SESSION', 'CURSOR'], argv, io, async (log, [sid, text], json) => {
  const cursor = parseEventId(text!)
  const snapshot = await log.peek(sid!, cursor ?? 'watermark')
  if (snapshot === undefined) return undefined
  const explained = explainCursor(text!, cursor, snapshot)
  return json ? JSON.stringify(explained, null, 2) : explained.text
})

type Look = (log: RedisLog, words: readonly string[], json: boolean) => Promise<string | undefined>

async function run (name: string, help: string, wanted: readonly string[], argv: readonly string[], io: Io, look: Look): Promise<number> {
  let redis: Redis | undefined
  try {
    const { values, positionals } = parseArgs({
      args: [...argv],
      allowPositionals: true,
      options: { redis: { type: 'string' }, prefix: { type: 'string' }, json: { type: 'boolean' }, help: { type: 'boolean', short: 'h' } }
    })
    if (values.help === true) {
      io.stdout.write(help)
      return 0
    }
    if (positionals.length !== wanted.length) throw new Error(`wants ${wanted.join(' and ')}; see mcp-resume ${name} --help`)
    redis = await connect(values.redis ?? io.env.REDIS_URL ?? DEFAULT_REDIS)
    const log = new RedisLog({
      redis,
      keys: new Keys(values.prefix ?? io.env.KEY_PREFIX ?? DEFAULT_PREFIX),
      replica: 'operator',
      retention: { windowMs: 0, maxEvents: 0, maxBytes: 0 },
      sessionTtlMs: 0,
      commandTimeoutMs: CONNECT_MS
    })
    const answer = await look(log, positionals, values.json === true)
    if (answer === undefined) {
      io.stderr.write(`mcp-resume ${name}: no session ${JSON.stringify(positionals[0])} under this prefix: it is unknown, has expired or was terminated\n`)
      return 1
    }
    io.stdout.write(`${answer}\n`)
    return 0
  } catch (error) {
    io.stderr.write(`mcp-resume ${name}: ${error instanceof LogAway || error instanceof Error ? error.message : String(error)}\n`)
    return 2
  } finally {
    redis?.disconnect()
  }
}

/** @throws Error that names the URL when there is no Redis within a few seconds. */
async function connect (url: string): Promise<Redis> {
  if (!/^rediss?:\/\//.test(url)) throw new Error(`--redis wants a redis:// URL, not ${JSON.stringify(url)}`)
  const redis = new Redis(url, { lazyConnect: true, connectTimeout: CONNECT_MS, retryStrategy: () => null })
  redis.on('error', () => { /* told by connect() */ })
  try {
    await redis.connect()
    return redis
  } catch (error) {
    redis.disconnect()
    const { host, port } = redis.options
    throw new Error(`no Redis at ${host}:${port}: ${(error as Error).message}`)
  }
}
