// What may import what. The order is the design: whoever needs an upward import has put something in the wrong place.
import { readFileSync, readdirSync } from 'node:fs'
import { join, posix } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'

const lib = fileURLToPath(new URL('../lib', import.meta.url))

/** From the bottom up. A file may import its own layer and those below. */
const LAYERS: ReadonlyArray<readonly [name: string, files: RegExp]> = [
  ['pure', /^(event-id|resume|sse|errors|log\/keys|log\/tags)\.ts$/],
  ['options', /^(options|counters)\.ts$/],
  ['log', /^(connection|replica|lease|log\/.*)\.ts$/],
  ['delivery', /^delivery\.ts$/],
  ['carriers', /^carriers\.ts$/],
  ['outbox', /^outbox\.ts$/],
  ['session', /^session\/.*\.ts$/],
  ['http', /^http\/.*\.ts$/],
  ['host', /^host\.ts$/],
  ['index', /^index\.ts$/]
]

/** These stand beside the plugin. The client sees pure files alone; the command also the client, and the log to look into it. */
const BESIDE: Record<string, RegExp> = {
  client: /^(event-id\.ts|client\/.*)$/,
  cli: /^((event-id|resume|errors)\.ts|(client|cli|log)\/.*)$/
}

/** The types of options name what the plugin is given; nothing of these files runs in it. */
const LAWFUL = new Set(['options.ts > log/log.ts', 'options.ts > log/redis-log.ts', 'options.ts > session/context.ts'])

/** Who may import a package. */
const PACKAGES: Record<string, RegExp> = {
  'fastify-plugin': /^index\.ts$/,
  fastify: /^(index|options|http\/.*)\.ts$/,
  ioredis: /^(index|replica|log\/redis-log|cli\/log-commands)\.ts$/,
  '@fastify/error': /^errors\.ts$/,
  'eventsource-parser': /^(client|cli)\//
}

interface Import { readonly from: string, readonly to: string, readonly isType: boolean }

const files = readdirSync(lib, { recursive: true, encoding: 'utf8' }).map(file => file.replaceAll('\\', '/')).filter(file => file.endsWith('.ts'))
const texts = new Map(files.map(file => [file, readFileSync(join(lib, file), 'utf8')]))
const imports = [...texts].flatMap(([from, text]): Import[] =>
  [...text.matchAll(/^(?:import|export)\s+(type\s)?(?:[^'"]*?\sfrom\s+)?['"]([^'"]+)['"]/gm)].map(([, type, to]) => ({
    from,
    to: to!.startsWith('.') ? posix.join(posix.dirname(from), to!) : to!,
    isType: type !== undefined
  })))
const own = imports.filter(({ to }) => files.includes(to))
const layerOf = (file: string): number => LAYERS.findIndex(([, pattern]) => pattern.test(file))

t.test('every file is in a layer, and every import line was understood', async t => {
  t.ok(files.length > 30)
  t.strictSame(files.filter(file => layerOf(file) === -1 && !/^(client|cli)\//.test(file)), [])
  t.strictSame(files.filter(file => LAYERS.filter(([, pattern]) => pattern.test(file)).length > 1 && layerOf(file) > 0), [])
  const lines = [...texts.values()].join('\n').match(/\bfrom '/g)!.length
  t.ok(imports.length >= lines, `${imports.length} imports, ${lines} lines`)
  t.strictSame(imports.filter(({ to }) => to.endsWith('.ts') && !files.includes(to)), [], 'nothing outside lib')
  t.strictSame(files.filter(file => /\b(?:import|require)\(/.test(texts.get(file)!)), [], 'no import is hidden in the code')
})

t.test('imports point down only', async t => {
  const upward = own.filter(({ from, to }) => layerOf(from) !== -1 && (layerOf(to) === -1 || layerOf(to) > layerOf(from)))
  const unlawful = upward.filter(({ from, to, isType }) => !isType || !LAWFUL.has(`${from} > ${to}`))
  t.strictSame(unlawful.map(({ from, to }) => `${from} > ${to}`), [])
  t.equal(upward.length, LAWFUL.size, 'every exception is needed')
})

t.test('what stands beside the plugin sees little of it', async t => {
  for (const [folder, allowed] of Object.entries(BESIDE)) {
    const stray = own.filter(({ from, to }) => from.startsWith(`${folder}/`) && !allowed.test(to))
    t.strictSame(stray.map(({ from, to }) => `${from} > ${to}`), [], folder)
  }
})

t.test('no file needs itself while it is loaded', async t => {
  const values = (file: string): string[] => own.filter(({ from, isType }) => from === file && !isType).map(({ to }) => to)
  const done = new Set<string>()
  const visit = (file: string, path: readonly string[]): void => {
    if (path.includes(file)) t.fail(`a circle: ${[...path, file].join(' > ')}`)
    else if (!done.has(file)) for (const next of values(file)) visit(next, [...path, file])
    done.add(file)
  }
  for (const file of files) visit(file, [])
  t.equal(done.size, files.length)
})

t.test('each package has its place', async t => {
  const packages = imports.filter(({ to }) => !to.endsWith('.ts') && !to.startsWith('node:'))
  for (const { from, to } of packages) t.match(from, PACKAGES[to] ?? /^nobody$/, `${from} imports ${to}`)
  const makers = imports.filter(({ to, isType }) => to === 'ioredis' && !isType).map(({ from }) => from)
  t.strictSame(makers.filter(from => !/^(index|cli\/log-commands)\.ts$/.test(from)), [], 'only the two that are started by somebody make a client')
  t.strictSame(imports.filter(({ to, isType }) => to === 'fastify' && !isType), [], 'of Fastify only types')
})

t.test('pure files: no I/O, no clock, no randomness but the tags', async t => {
  for (const file of files.filter(file => layerOf(file) === 0)) {
    const node = imports.filter(({ from, to }) => from === file && to.startsWith('node:')).map(({ to }) => to)
    t.strictSame(node, file === 'log/tags.ts' ? ['node:crypto'] : [], file)
    t.notMatch(texts.get(file)!, /\b(Date|performance|process|Math\.random|setTimeout|setInterval|fetch)\b/, file)
  }
})

t.test('each thing of the outside world has its place', async t => {
  const places: Array<[what: string, use: RegExp, where: RegExp]> = [
    ['the raw response is written to by connection; by http/streams only where a response is one frame', /\braw\.(write|writeHead|end|destroy|flushHeaders|setHeader|uncork)\b|\bServerResponse\b/, /^(connection|http\/streams)\.ts$/],
    ['request and reply are http\'s; the types of options name the request', /\bFastify(Request|Reply)\b/, /^(options|http\/[\w-]+)\.ts$/],
    ['the SDK\'s transport is known to session alone', /\b(onmessage|relatedRequestId|McpTransport)\b/, /^session\//],
    ['scripts are called by the log alone', /\b(defineCommand|evalsha)\b/, /^(options|log\/redis-log)\.ts$/]
  ]
  for (const [what, use, where] of places) {
    const users = files.filter(file => !/^(client|cli)\//.test(file) && use.test(texts.get(file)!))
    t.ok(users.length > 0 && users.every(file => where.test(file)), `${what}: ${users.join(', ')}`)
  }
})

t.test('no key or channel name is built outside log/keys', async t => {
  const stray = files.filter(file => !/^(client|cli)\//.test(file) && /\bkeyPrefix\b/.test(texts.get(file)!))
  t.strictSame(stray.sort(), ['index.ts', 'options.ts'], 'the prefix goes from the options into Keys')
})
