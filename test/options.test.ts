import t from 'tap'
import { InvalidOption } from '../lib/errors.ts'
import { readOptions, type McpResumeOptions } from '../lib/options.ts'

const server = () => ({ connect: async () => {} })
const redis = { defineCommand: () => {} } as unknown as NonNullable<McpResumeOptions['redis']>

function read (options: object): ReturnType<typeof readOptions> {
  return readOptions({ server, ...options } as McpResumeOptions)
}

t.test('a server is all that must be given', async t => {
  const { principal, ...config } = read({})
  t.strictSame(config, {
    server,
    redis: undefined,
    keyPrefix: 'mcp:',
    path: '/mcp',
    resumable: true,
    retention: { windowMs: 300_000, maxEvents: 10_000, maxBytes: 8 * 1024 * 1024 },
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
    allowedOrigins: [],
    allowedHosts: undefined
  })
  t.ok(Object.isFrozen(read({})) && Object.isFrozen(config.retention), 'frozen')
  t.equal(typeof principal, 'function')
})

t.test('undefined is not given; a part of retention leaves the rest', async t => {
  const config = read({ path: undefined, onGap: undefined, redis: undefined, retention: { maxEvents: 5, maxBytes: undefined } })
  t.equal(config.path, '/mcp')
  t.equal(config.onGap, 'notice')
  t.strictSame(config.retention, { windowMs: 300_000, maxEvents: 5, maxBytes: 8 * 1024 * 1024 })
  t.strictSame(read({ retention: undefined }).retention, read({}).retention)
})

t.test('what may be given', async t => {
  for (const options of [
    { redis }, { redis: 'redis://localhost' }, { redis: 'rediss://user:secret@host:6380/1' },
    { keyPrefix: '' }, { keyPrefix: 'my-app:mcp:' }, { path: '/' }, { path: '/a/b' },
    { onGap: 'reject' }, { onFuture: 'terminate' }, { allowedOrigins: '*' }, { allowedOrigins: ['https://a.example'] }, { allowedHosts: ['a.example'] },
    { graceMs: 0 }, { patienceMs: 0 }, { maxSessionsPerPrincipal: 1 }, { maxSessionsPerPrincipal: Infinity }, { onSessionLimit: 'refuse' }, { retention: { maxEvents: 1, maxBytes: 1024 } }, { resumable: false },
    // What Fastify itself takes out of the options of a plugin.
    { prefix: '/v1' }, { logLevel: 'warn' }
  ]) t.doesNotThrow(() => read(options), JSON.stringify(options))
})

t.test('Design B keeps a small buffer for slow readers, and no log', async t => {
  const { retention, resumable } = read({ resumable: false })
  t.equal(resumable, false)
  t.strictSame(retention, { windowMs: 60_000, maxEvents: 1000, maxBytes: 8 * 1024 * 1024 })
})

const least: Record<string, [below: number, above: number, unit: string]> = {
  sessionTtlMs: [999, 2 ** 53, 'ms'],
  handshakeMs: [999, 2 ** 53, 'ms'],
  idleMs: [999, 2 ** 53, 'ms'],
  keepAliveMs: [99, 2 ** 31, 'ms'],
  retryMs: [99, 60_001, 'ms'],
  stallMs: [999, 2 ** 31, 'ms'],
  graceMs: [-1, 2 ** 31, 'ms'],
  patienceMs: [-1, 60_001, 'ms'],
  commandTimeoutMs: [99, 60_001, 'ms'],
  maxQueuedBytes: [65_535, 2 ** 53, 'bytes'],
  bodyLimit: [1023, 2 ** 53, 'bytes'],
  'retention.windowMs': [999, 2 ** 53, 'ms'],
  'retention.maxEvents': [0, 10_000_001, 'events'],
  'retention.maxBytes': [1023, 2 ** 53, 'bytes']
}

t.test('every number has a least and a most, and the message says them', async t => {
  for (const [name, [below, above, unit]] of Object.entries(least)) {
    const key = name.replace('retention.', '')
    const give = (value: unknown): object => name === key ? { [key]: value } : { retention: { [key]: value } }
    for (const value of [below, above, 1.5, NaN, Infinity, '1000', null, true, 1000n]) {
      const range = RegExp(`^fastify-mcp-resume: ${name.replace('.', '\\.')} must be a whole number of ${unit} from -?\\d+ to \\d+, got ${String(value)}$`)
      t.throws(() => read(give(value)), { code: 'MCP_RESUME_ERR_OPTION', message: range }, `${name}: ${String(value)}`)
    }
    if (name !== 'keepAliveMs' && name !== 'retention.windowMs') t.doesNotThrow(() => read(give(below + 1)), `${name}: ${below + 1}`)
  }
})

t.test('every other rule is named by the error', async t => {
  const rules: Array<[options: object, rule: RegExp]> = [
    [{ server: undefined }, /server must be a function/],
    [{ server: {} }, /server must be a function/],
    [{ resumable: 'no' }, /resumable must be true or false/],
    [{ resumable: 0 }, /resumable must be true or false/],
    [{ resumeable: false }, /"resumeable" is not an option/],
    [{ toString: 1 }, /"toString" is not an option/],
    [{ retention: { windowsMs: 1000 } }, /"retention\.windowsMs" is not an option/],
    [{ retention: { valueOf: 1000 } }, /"retention\.valueOf" is not an option/],
    [{ retention: null }, /retention must be an object/],
    [{ retention: 300_000 }, /retention must be an object/],
    [{ path: 'mcp' }, /path must start with "\/"/],
    [{ path: null }, /path must start with "\/"/],
    [{ keyPrefix: 'a b' }, /keyPrefix must be at most 64 visible characters without braces/],
    [{ keyPrefix: '{tag}' }, /keyPrefix must be/],
    [{ keyPrefix: 'x'.repeat(65) }, /keyPrefix must be/],
    [{ keyPrefix: 'é' }, /keyPrefix must be/],
    [{ keyPrefix: null }, /keyPrefix must be/],
    [{ onGap: 'ignore' }, /onGap must be 'notice', 'reject' or 'terminate'/],
    [{ onFuture: null }, /onFuture must be 'notice', 'reject' or 'terminate'/],
    [{ maxSessionsPerPrincipal: 0 }, /maxSessionsPerPrincipal must be a whole number from 1, got 0/],
    [{ maxSessionsPerPrincipal: 1.5 }, /maxSessionsPerPrincipal must be a whole number from 1, got 1\.5/],
    [{ maxSessionsPerPrincipal: null }, /maxSessionsPerPrincipal must be/],
    [{ onSessionLimit: 'ignore' }, /onSessionLimit must be 'evict' or 'refuse'/],
    [{ principal: 'me' }, /principal must be a function/],
    [{ allowedOrigins: 'https://a.example' }, /allowedOrigins must be an array of origins or '\*'/],
    [{ allowedOrigins: [1] }, /allowedOrigins must be/],
    [{ allowedHosts: '*' }, /allowedHosts must be an array of host names/],
    [{ allowedHosts: null }, /allowedHosts must be an array of host names/],
    [{ redis: {} }, /redis must be an ioredis client or a URL/],
    [{ redis: null }, /redis must be an ioredis client or a URL/],
    [{ redis: 6379 }, /redis must be an ioredis client or a URL/],
    // An unset environment variable must not mean "whatever listens on 6379".
    [{ redis: '' }, /redis must be an ioredis client or a URL/]
  ]
  for (const [options, rule] of rules) {
    const label = Object.entries(options).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join()
    t.throws(() => read(options), { code: 'MCP_RESUME_ERR_OPTION', message: rule }, label)
  }
  t.throws(() => readOptions(null as unknown as McpResumeOptions), { code: 'MCP_RESUME_ERR_OPTION', message: /options must be an object/ })
  t.throws(() => readOptions('mcp' as unknown as McpResumeOptions), InvalidOption)
})

t.test('there is no correct middle: incoherent combinations', async t => {
  const window = /retention\.windowMs \(\d+\) must be at least keepAliveMs \+ retryMs \(\d+\): a client that comes back as it is told to would find its events gone/
  t.throws(() => read({ retention: { windowMs: 16_999 } }), { message: window })
  t.doesNotThrow(() => read({ retention: { windowMs: 17_000 } }))
  t.throws(() => read({ keepAliveMs: 300_000 }), { message: window })
  t.doesNotThrow(() => read({ keepAliveMs: 300_000, resumable: false }), 'nothing is kept there that could be gone')
  t.throws(() => read({ retention: { windowMs: 1000 }, keepAliveMs: 500, retryMs: 501 }), { message: window })
  t.doesNotThrow(() => read({ retention: { windowMs: 1000 }, keepAliveMs: 500, retryMs: 500 }))

  t.throws(() => read({ resumable: false, retention: {} }), { message: /resumable: false keeps no log, so it goes with no retention/ })
  t.throws(() => read({ resumable: false, retention: { maxEvents: 10 } }), { message: /resumable: false keeps no log/ })
  t.throws(() => read({ resumable: false, redis }), { message: /resumable: false keeps nothing in Redis/ })
  t.throws(() => read({ retention: { maxEvents: 0 } }), { message: /retention\.maxEvents must be a whole number of events from 1/ })
  t.throws(() => read({ retention: { windowMs: 0 } }), { message: /retention\.windowMs must be/ })
})

t.test('the principal comes from the auth info that others leave on the request', async t => {
  const { principal } = read({})
  const of = (auth?: unknown, raw: object = {}) => principal({ ...auth === undefined ? {} : { auth }, raw } as never)
  t.equal(of(), undefined, 'nobody said who it is')
  t.equal(of(null), undefined)
  t.equal(of('token'), undefined)
  const alice = of({ clientId: 'c1', token: 'one', extra: { iss: 'https://id.example', sub: 'alice' } })
  t.equal(of({ clientId: 'c1', token: 'another', extra: { issuer: 'https://id.example', subject: 'alice' } }), alice, 'a new token is the same principal')
  t.equal(of(undefined, { auth: { clientId: 'c1', extra: { iss: 'https://id.example', sub: 'alice' } } }), alice, 'left on the raw request')
  const others = [
    of({ clientId: 'c2', extra: { iss: 'https://id.example', sub: 'alice' } }),
    of({ clientId: 'c1', extra: { iss: 'https://other.example', sub: 'alice' } }),
    of({ clientId: 'c1', extra: { iss: 'https://id.example', sub: 'bob' } }),
    of({ clientId: 'c1' }),
    of({})
  ]
  t.equal(new Set([alice, ...others]).size, 6, 'client, issuer and subject all tell')
})
