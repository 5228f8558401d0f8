import type { FastifyRequest } from 'fastify'
import { InvalidOption } from './errors.ts'
import type { Retention } from './log/log.ts'
import type { RedisClient } from './log/redis-log.ts'
import type { McpServerLike } from './session/context.ts'

/** What a cursor that cannot be resumed without a loss is answered with. */
export type LossAnswer = 'notice' | 'reject' | 'terminate'

export interface McpResumeOptions {
  /**
   * Makes an SDK server (`McpServer` or `Server` of SDK 1.x or 2.x). Called once for each session on each replica that
   * serves it, so what must happen once per session does not belong here.
   */
  server: (context: { sessionId: string }) => McpServerLike | Promise<McpServerLike>
  /** The log's Redis: a client (yours: it stays open) or a URL (ours: closed with the app). Without it the log is in this process, for one replica. */
  redis?: RedisClient | string | undefined
  /** Start of every Redis key and channel. @default 'mcp:' */
  keyPrefix?: string | undefined
  /** @default '/mcp' */
  path?: string | undefined
  /** `false`: Design B. No event carries an ID, nothing is logged, nothing is promised. @default true */
  resumable?: boolean | undefined
  retention?: Partial<Retention> | undefined
  /** Life of a session without any activity, in ms. @default 3600000 */
  sessionTtlMs?: number | undefined
  /** Life of a session until `notifications/initialized`, in ms. @default 60000 */
  handshakeMs?: number | undefined
  /** A live SDK server that serves nothing for this long, in ms, is let go; its session lives on. @default 300000 */
  idleMs?: number | undefined
  /** Sessions that one principal may have; anonymous callers are not counted. @default Infinity */
  maxSessionsPerPrincipal?: number | undefined
  /** One session too many: `'evict'` ends the one idle for longest, `'refuse'` answers an error. @default 'evict' */
  onSessionLimit?: 'evict' | 'refuse' | undefined
  /** Time between keep-alive comments, in ms. @default 15000 */
  keepAliveMs?: number | undefined
  /** Reconnection delay told to clients when the server ends a stream, in ms; up to half as much again is added at random. @default 2000 */
  retryMs?: number | undefined
  /** A peer that takes nothing for this long, in ms, is dropped. @default 60000 */
  stallMs?: number | undefined
  /** How long running requests may go on while the app closes, in ms. @default 10000 */
  graceMs?: number | undefined
  /** How long a request waits for a Redis that is away, in ms. @default 10000 */
  patienceMs?: number | undefined
  /** How long one Redis command may take, in ms. @default 2000 */
  commandTimeoutMs?: number | undefined
  /** Bytes of a stream's messages that may wait for Redis; beyond, the stream ends. @default 16777216 */
  maxQueuedBytes?: number | undefined
  /** Largest body of a POST, in bytes. @default 4194304 */
  bodyLimit?: number | undefined
  /** @default 'notice' */
  onGap?: LossAnswer | undefined
  /** @default 'notice' */
  onFuture?: LossAnswer | undefined
  /** Who sends a request; a session serves only the principal that opened it. @default from `request.auth`: client, issuer, subject */
  principal?: ((request: FastifyRequest) => string | undefined) | undefined
  /** Origins of browser scripts that may call, besides the server's own. @default [] */
  allowedOrigins?: readonly string[] | '*' | undefined
  /** Names that the `Host` header may carry. @default any, except from a browser on loopback */
  allowedHosts?: readonly string[] | undefined
}

type Complete = { readonly [Name in keyof McpResumeOptions]-?: Exclude<McpResumeOptions[Name], undefined> }

/** Complete, checked and frozen. */
export interface Config extends Omit<Complete, 'redis' | 'retention' | 'allowedHosts'> {
  readonly redis: RedisClient | string | undefined
  readonly retention: Retention
  readonly allowedHosts: readonly string[] | undefined
}

const DEFAULTS = {
  redis: undefined,
  keyPrefix: 'mcp:',
  path: '/mcp',
  resumable: true,
  sessionTtlMs: 3_600_000,
  handshakeMs: 60_000,
  idleMs: 300_000,
  maxSessionsPerPrincipal: Infinity,
  onSessionLimit: 'evict',
  keepAliveMs: 15_000,
  retryMs: 2000,
  stallMs: 60_000,
  graceMs: 10_000,
  patienceMs: 10_000,
  commandTimeoutMs: 2000,
  maxQueuedBytes: 16 * 1024 * 1024,
  bodyLimit: 4 * 1024 * 1024,
  onGap: 'notice',
  onFuture: 'notice',
  principal: principalOfAuth,
  allowedOrigins: [] as readonly string[],
  allowedHosts: undefined
} as const

const RETENTION = { windowMs: 300_000, maxEvents: 10_000, maxBytes: 8 * 1024 * 1024 }

/** A slow reader's buffer, no replay log: what Design B keeps in the process. */
const DESIGN_B_BUFFER = { windowMs: 60_000, maxEvents: 1000, maxBytes: 8 * 1024 * 1024 }

const LONGEST_TIMER_MS = 2 ** 31 - 1

/** Least and most of each number, and its unit for the message. */
const RANGES: Record<string, [least: number, most: number, unit: string]> = {
  sessionTtlMs: [1000, Number.MAX_SAFE_INTEGER, 'ms'],
  handshakeMs: [1000, Number.MAX_SAFE_INTEGER, 'ms'],
  idleMs: [1000, Number.MAX_SAFE_INTEGER, 'ms'],
  keepAliveMs: [100, LONGEST_TIMER_MS, 'ms'],
  retryMs: [100, 60_000, 'ms'],
  stallMs: [1000, LONGEST_TIMER_MS, 'ms'],
  graceMs: [0, LONGEST_TIMER_MS, 'ms'],
  patienceMs: [0, 60_000, 'ms'],
  commandTimeoutMs: [100, 60_000, 'ms'],
  maxQueuedBytes: [64 * 1024, Number.MAX_SAFE_INTEGER, 'bytes'],
  bodyLimit: [1024, Number.MAX_SAFE_INTEGER, 'bytes'],
  'retention.windowMs': [1000, Number.MAX_SAFE_INTEGER, 'ms'],
  'retention.maxEvents': [1, 10_000_000, 'events'],
  'retention.maxBytes': [1024, Number.MAX_SAFE_INTEGER, 'bytes']
}

/**
 * Completes the options with their defaults.
 *
 * @throws InvalidOption that names the option and the rule it breaks, incoherent combinations included.
 */
export function readOptions (options: McpResumeOptions): Config {
  if (options === null || typeof options !== 'object') throw new InvalidOption('options must be an object')
  const { retention: given, ...rest } = options
  const unknown = Object.keys(rest).find(name => name !== 'server' && name !== 'prefix' && name !== 'logLevel' && !Object.hasOwn(DEFAULTS, name))
  if (unknown !== undefined) throw new InvalidOption(`"${unknown}" is not an option`)
  const defined = Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined)) as Omit<McpResumeOptions, 'retention'>
  const merged = { ...DEFAULTS, ...defined } as Omit<Config, 'retention'>
  check(typeof merged.server === 'function', 'server must be a function that returns an MCP SDK server')
  check(typeof merged.resumable === 'boolean', 'resumable must be true or false')
  check(merged.resumable || given === undefined, 'resumable: false keeps no log, so it goes with no retention: remove one of the two')
  check(merged.resumable || merged.redis === undefined, 'resumable: false keeps nothing in Redis: remove redis, or let the sessions be resumable')
  check(given === undefined || (typeof given === 'object' && given !== null), 'retention must be an object')
  const stray = Object.keys(given ?? {}).find(name => !Object.hasOwn(RETENTION, name))
  check(stray === undefined, `"retention.${stray}" is not an option`)
  const kept = Object.fromEntries(Object.entries(given ?? {}).filter(([, value]) => value !== undefined))
  const retention: Retention = merged.resumable ? { ...RETENTION, ...kept } : DESIGN_B_BUFFER
  for (const [name, [least, most, unit]] of Object.entries(RANGES)) {
    const value = name.startsWith('retention.')
      ? retention[name.slice('retention.'.length) as keyof Retention]
      : merged[name as keyof typeof merged]
    check(Number.isSafeInteger(value) && value as number >= least && value as number <= most,
      `${name} must be a whole number of ${unit} from ${least} to ${most}, got ${String(value)}`)
  }
  if (merged.resumable) {
    check(retention.windowMs >= merged.keepAliveMs + merged.retryMs,
      `retention.windowMs (${retention.windowMs}) must be at least keepAliveMs + retryMs (${merged.keepAliveMs + merged.retryMs}): ` +
      'a client that comes back as it is told to would find its events gone')
  }
  check(typeof merged.path === 'string' && merged.path.startsWith('/'), 'path must start with "/"')
  check(typeof merged.keyPrefix === 'string' && /^[\x21-\x7a]{0,64}$/.test(merged.keyPrefix) && !/[{}]/.test(merged.keyPrefix),
    'keyPrefix must be at most 64 visible characters without braces')
  for (const name of ['onGap', 'onFuture'] as const) {
    check(['notice', 'reject', 'terminate'].includes(merged[name]), `${name} must be 'notice', 'reject' or 'terminate'`)
  }
  check(merged.maxSessionsPerPrincipal === Infinity || (Number.isSafeInteger(merged.maxSessionsPerPrincipal) && merged.maxSessionsPerPrincipal >= 1),
    `maxSessionsPerPrincipal must be a whole number from 1, got ${String(merged.maxSessionsPerPrincipal)}`)
  check(['evict', 'refuse'].includes(merged.onSessionLimit), "onSessionLimit must be 'evict' or 'refuse'")
  check(typeof merged.principal === 'function', 'principal must be a function of the request')
  check(merged.allowedOrigins === '*' || isStrings(merged.allowedOrigins), "allowedOrigins must be an array of origins or '*'")
  check(merged.allowedHosts === undefined || isStrings(merged.allowedHosts), 'allowedHosts must be an array of host names')
  check(merged.redis === undefined || (typeof merged.redis === 'string' ? /^\w+:\/\//.test(merged.redis) : isRedisClient(merged.redis)),
    'redis must be an ioredis client or a URL')
  return Object.freeze({ ...merged, retention: Object.freeze(retention) }) as Config
}

function check (holds: boolean, rule: string): asserts holds {
  if (!holds) throw new InvalidOption(rule)
}

function isStrings (value: unknown): value is readonly string[] {
  return Array.isArray(value) && value.every(item => typeof item === 'string')
}

function isRedisClient (value: unknown): boolean {
  return typeof (value as { defineCommand?: unknown } | null)?.defineCommand === 'function'
}

/** The principal by the auth info that the SDK's and other middlewares leave on the request. */
function principalOfAuth (request: FastifyRequest): string | undefined {
  const auth = (request as { auth?: unknown }).auth ?? (request.raw as { auth?: unknown }).auth
  if (auth === null || typeof auth !== 'object') return undefined
  const { clientId, extra = {} } = auth as { clientId?: unknown, extra?: Record<string, unknown> }
  return JSON.stringify([clientId, extra.iss ?? extra.issuer, extra.sub ?? extra.subject])
}
