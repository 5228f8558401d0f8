// What the README says, run: its examples against real ports, its commands, its tables against the source.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { McpServer } from '@modelcontextprotocol/server'
import t, { type Test } from 'tap'
import * as errors from '../lib/errors.ts'
import { McpHost } from '../lib/host.ts'
import { readOptions } from '../lib/options.ts'
import { freePort } from './helpers/port.ts'
import { keyPrefix, redisUrl, startRedis } from './helpers/redis.ts'
import { initialize } from './helpers/sse-client.ts'
import { connectStock } from './helpers/stock-clients.ts'
import { until, within } from './helpers/wait.ts'

const root = fileURLToPath(new URL('..', import.meta.url))
const source = (path: string): string => readFileSync(join(root, path), 'utf8')
const readme = source('README.md')
const scripts = JSON.parse(source('package.json')).scripts as Record<string, string>
const examples = blocks('ts')
// Several programs start, and the compiler among them.
t.setTimeout(300_000)

t.test('the examples type-check', { timeout: 120_000 }, async t => {
  const folder = writeExamples(t)
  const { code, output } = await run(t, process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '-p', folder])
  t.equal(code, 0, output)
})

t.test('the server of the example serves stock clients, and resumes', async t => {
  const redis = await startRedis(t)
  const url = await startExample(t, { REDIS_URL: redis.url })
  for (const sdk of [1, 2] as const) {
    const client = await connectStock(t, sdk, url)
    t.equal(await client.callText('hello'), 'Hello!', `SDK ${sdk}.x`)
    await client.terminate()
  }
  const session = await initialize(url)
  const first = await session.listen()
  const { id } = await first.stream!.next()
  first.cut()
  t.match((await session.resume(id!)).headers['mcp-resume'], /^resumed;cause=caught-up/)
})

t.test('the client of the example connects to it', async t => {
  const url = await startExample(t, {})
  const folder = writeExamples(t)
  const file = join(folder, 'client.ts')
  await writeFile(file, `${examples[1]}
    console.log(JSON.stringify(await client.callTool({ name: 'hello' })))
    await client.close()`)
  const { code, output } = await run(t, process.execPath, ['--import', 'tsx', file], { MCP_URL: url, TSX_TSCONFIG_PATH: join(folder, 'tsconfig.json') })
  t.equal(code, 0, output)
  t.match(output, /Hello!/)
})

t.test('the commands', async t => {
  const commands = blocks('sh').flatMap(block => block.trim().split('\n'))
  t.same(commands, [
    'npm install fastify-mcp-resume fastify @modelcontextprotocol/server',
    'npx mcp-resume probe http://127.0.0.1:3000/mcp',
    'npx mcp-resume inspect SESSION --redis redis://127.0.0.1:6379',
    'npx mcp-resume explain SESSION 47-12-1-k3f9 --redis redis://127.0.0.1:6379',
    'docker compose up --build',
    'npm test',
    'npm run demo',
    'npm run bench'
  ], 'each is one that is tested here, or by its own tests')
  for (const script of ['start', 'test', 'demo', 'bench']) t.ok(scripts[script], script)
  t.same(source('.ci/run').trim().split('\n').slice(-2), ['npm test', 'npm run demo'], 'CI calls the two of them')

  await t.test('mcp-resume', async t => {
    const redis = await startRedis(t)
    const session = await initialize(await startExample(t, { REDIS_URL: redis.url }))
    const { id } = await (await session.listen()).stream!.next()
    const mcpResume = async (...args: string[]): Promise<void> => {
      const { code, output } = await run(t, process.execPath, ['--import', 'tsx', join(root, 'lib/cli/main.ts'), ...args])
      t.equal(code, 0, output)
    }
    await mcpResume('probe', '--help')
    for (const command of commands.filter(command => /mcp-resume (inspect|explain)/.test(command))) {
      const given: Record<string, string> = { SESSION: session.sessionId, '47-12-1-k3f9': id!, 'redis://127.0.0.1:6379': redis.url }
      await mcpResume(...command.split(' ').slice(2).map(arg => given[arg] ?? arg))
    }
  })
  await t.test('npm start', async t => {
    const child = spawn('npm', ['start', '--silent'], {
      cwd: root, env: { ...process.env, NODE_OPTIONS: '', PORT: '0', REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t) }, stdio: ['ignore', 'pipe', 'ignore'], detached: true
    })
    t.teardown(() => endGroup(child.pid!))
    const [line] = await within(once(child.stdout, 'data') as Promise<[Buffer]>, 'the ready line', 30_000)
    t.match(String(line), /^ready http:\/\/127\.0\.0\.1:\d+\/mcp replica=\w+\n$/)
  })
  await t.test('docker compose up', async t => {
    const compose = await run(t, 'docker', ['compose', 'version'])
    if (compose.code !== 0) return t.pass('no Docker Compose here: the file is not checked')
    const { code, output } = await run(t, 'docker', ['compose', 'config', '--quiet'])
    t.equal(code, 0, output)
  })
})

t.test('the files it links to exist, and so do its headings', async t => {
  const links = [...readme.matchAll(/\]\(([^)]+)\)/g)].map(([, link]) => link!)
  const anchors = [...readme.matchAll(/^#+ (.+)$/gm)].map(([, title]) => `#${title!.toLowerCase().replace(/[^\w\- ]/g, '').replaceAll(' ', '-')}`)
  for (const link of links) {
    t.ok(link.startsWith('#') ? anchors.includes(link) : existsSync(join(root, link)), link)
  }
})

t.test('the options are those of the source, in its order, with its defaults', async t => {
  const declared = /export interface McpResumeOptions \{([^]*?)\n\}/.exec(source('lib/options.ts'))![1]!
  const names = [...declared.matchAll(/^ {2}(\w+)\??:/gm)].map(([, name]) => name!)
  const bounds = ['retention.windowMs', 'retention.maxEvents', 'retention.maxBytes']
  const rows = table('Options')
  t.same(rows.map(([name]) => name!.replaceAll('`', '')), names.flatMap(name => name === 'retention' ? bounds : name))

  const config = readOptions({ server: () => new McpServer({ name: 'any', version: '1' }) }) as unknown as Record<string, unknown>
  const words: Record<string, unknown> = { required: config.server, none: undefined, any: undefined, 'from `request.auth`': config.principal }
  for (const [name, , given] of rows.map(row => row.map(cell => cell.trim())) as Array<[string, string, string]>) {
    const path = name.replaceAll('`', '').split('.')
    const actual = path.reduce<any>((value, part) => value[part], config)
    const claimed = given.startsWith('`') ? literal(given.slice(1, -1)) : words[given]
    t.ok(given.startsWith('`') || given in words, `${name}: "${given}" is a default`)
    t.same(actual, claimed, `${name} is ${given}`)
  }
})

t.test('the errors are those of the source', async t => {
  const [coded, rpc] = tables('Errors') as [string[][], string[][]]
  const made = Object.values(errors).flatMap((Made: any) => typeof Made === 'function' ? [new Made('', '')] : []).filter(({ code }) => code !== undefined)
  t.ok(made.length > 5)
  t.same(coded.map(([code, status]) => `${code!.replaceAll('`', '')} ${status}`).sort(), made.map(({ code, statusCode }) => `${code} ${statusCode}`).sort())
  t.same(rpc.map(([code]) => Number(code)).sort(), Object.values(errors.RpcCode).sort())
})

t.test('app.mcp has what it says, and says what it has', async t => {
  const named = table('app.mcp').flatMap(([names]) => [...names!.matchAll(/(\w+)(?:\(|`)/g)].map(([, name]) => name!))
  const has = Object.getOwnPropertyNames(McpHost.prototype).filter(name => name !== 'constructor')
  t.same([...named].sort(), [...has, 'replicaId'].sort())
})

/** The code blocks of a language. */
function blocks (language: string): string[] {
  return [...readme.matchAll(new RegExp(`^\`\`\`${language}\n([^]*?)^\`\`\`$`, 'gm'))].map(([, code]) => code!)
}

/** The rows of the tables under a heading, cell by cell, without their heads. */
function tables (heading: string): string[][][] {
  const section = readme.split(/^## /m).find(section => section.startsWith(`${heading}\n`))!.split(/^### /m)[0]!
  return [...section.matchAll(/(?:^\|.*\n)+/gm)].map(([rows]) =>
    rows.trim().split('\n').slice(2).map(row => row.slice(1, -1).split(/(?<!\\)\|/).map(cell => cell.trim())))
}

function table (heading: string): string[][] {
  return tables(heading)[0]!
}

function literal (code: string): unknown {
  return code === 'Infinity' ? Infinity : JSON.parse(code.replaceAll("'", '"'))
}

/** The TypeScript examples as files, which find this package under its name. */
function writeExamples (t: Test): string {
  return t.testdir({
    ...Object.fromEntries(examples.map((code, i) => [`example-${i + 1}.ts`, code])),
    'tsconfig.json': JSON.stringify({
      extends: join(root, 'tsconfig.json'),
      compilerOptions: {
        rootDir: root,
        paths: { 'fastify-mcp-resume': [join(root, 'lib/index.ts')], 'fastify-mcp-resume/client': [join(root, 'lib/client/index.ts')] }
      },
      include: ['*.ts']
    })
  })
}

/** Runs the first example. @returns its endpoint */
async function startExample (t: Test, env: NodeJS.ProcessEnv): Promise<string> {
  const folder = writeExamples(t)
  const port = await freePort()
  const { REDIS_URL, ...rest } = process.env
  const child = spawn(process.execPath, ['--import', 'tsx', join(folder, 'example-1.ts')], {
    cwd: root, env: { ...rest, NODE_OPTIONS: '', PORT: String(port), TSX_TSCONFIG_PATH: join(folder, 'tsconfig.json'), ...env }, stdio: ['ignore', 'ignore', 'pipe']
  })
  t.teardown(async () => {
    child.kill('SIGKILL')
    await once(child, 'exit')
  })
  const url = `http://localhost:${port}/mcp`
  const problems = text(child.stderr)
  await until(async () => {
    if (child.exitCode !== null) throw new Error(await problems)
    return await fetch(url).then(() => true, () => false)
  }, 'the example listens', 30_000)
  return url
}

async function run (t: Test, program: string, args: string[], env: NodeJS.ProcessEnv = {}): Promise<{ code: number | null, output: string }> {
  const child = spawn(program, args, { cwd: root, env: { ...process.env, NODE_OPTIONS: '', ...env }, stdio: ['ignore', 'pipe', 'pipe'] })
  t.teardown(() => child.kill('SIGKILL'))
  const exit = new Promise<number | null>(resolve => {
    child.once('error', () => resolve(null))
    child.once('close', code => resolve(code))
  })
  const [output, problems, code] = await Promise.all([text(child.stdout), text(child.stderr), exit])
  return { code, output: output + problems }
}

/** `npm start` is a shell that became a server: the group ends with it. */
function endGroup (pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch { /* it has ended */ }
}
