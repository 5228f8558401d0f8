import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import t from 'tap'
import type { ScenarioName } from '../lib/cli/observation.ts'
import { probeCommand } from '../lib/cli/probe-command.ts'
import { probe } from '../lib/cli/probe.ts'
import type { ProbeOptions, Report } from '../lib/cli/probe.ts'
import { exitCodeOf } from '../lib/cli/report.ts'
import { diceTool, emitTool, startFlawedServer, tickTool } from './helpers/flawed-servers.ts'
import type { Flaw } from './helpers/flawed-servers.ts'
import { freePort } from './helpers/port.ts'
import type { Owner } from './helpers/teardown.ts'

// Nearly all of a probe is waiting, so several share the process.
t.jobs = 3

const PATIENT_MS = 5000
const HANG_MS = 1200
const TICK = [{ tool: 'tick', args: { n: 12, ms: 50 } }]

interface Case {
  readonly flaw: Flaw
  readonly verdicts: Partial<Readonly<Record<ScenarioName, string>>>
  readonly weakness?: readonly [scenario: string, weakness: string]
  readonly cause?: RegExp
  readonly exitCode: 0 | 1 | 2
  /** A hang takes this long to show, every time. */
  readonly timeoutMs?: number
  /** The pause between two messages: how late a resume may be and still meet a running call. */
  readonly ms?: number
}

const SOUND = { 'busy stream': 'correct', 'unique IDs': 'correct', 'exact cursor': 'correct', 'caught up': 'correct', 'second drop': 'correct', 'first event': 'correct' }

const CASES: readonly Case[] = [
  { flaw: 'none', verdicts: { ...SOUND, 'half-open': 'correct', 'finished stream': 'correct', 'older than retained': 'could not tell', 'ahead of the head': 'explicit refusal', garbage: 'correct', 'other session': 'could not tell' }, exitCode: 0 },
  { flaw: 'per-connection counter', verdicts: { 'unique IDs': 'rebase', 'caught up': 'rebase', 'second drop': 'rebase', 'half-open': 'rebase' }, cause: /per-connection counter with a session-wide buffer/, exitCode: 1 },
  { flaw: 'per-stream counter', verdicts: { ...SOUND, 'unique IDs': 'rebase', 'first event': 'duplicate' }, cause: /counted per stream/, exitCode: 1 },
  { flaw: 'replays everything', verdicts: { 'exact cursor': 'duplicate', 'caught up': 'duplicate', 'finished stream': 'duplicate', garbage: 'duplicate' }, cause: /cursor is not used/, exitCode: 1 },
  { flaw: 'clamps to the floor', verdicts: { 'exact cursor': 'correct', 'caught up': 'correct', 'older than retained': 'silent gap' }, cause: /clamped to the oldest/, exitCode: 1 },
  { flaw: 'silent when caught up', verdicts: SOUND, weakness: ['caught up', 'silent when caught up'], exitCode: 0, ms: 100 },
  { flaw: 'never answers', verdicts: { 'exact cursor': 'hang', 'half-open': 'hang', garbage: 'hang' }, cause: /even an exact cursor gets nothing/, exitCode: 1, timeoutMs: HANG_MS },
  { flaw: 'deaf', verdicts: { 'exact cursor': 'hang', 'caught up': 'hang', 'finished stream': 'hang' }, cause: /even an exact cursor gets nothing/, exitCode: 1, timeoutMs: HANG_MS },
  { flaw: 'drips', verdicts: { 'exact cursor': 'hang', 'caught up': 'hang' }, exitCode: 1, timeoutMs: HANG_MS },
  { flaw: 'replays without joining', verdicts: { 'caught up': 'hang', 'half-open': 'hang', 'first event': 'correct' }, cause: /not joined to the running call/, exitCode: 1, timeoutMs: HANG_MS },
  { flaw: 'loops', verdicts: { 'exact cursor': 'reconnect loop', 'caught up': 'reconnect loop', 'finished stream': 'correct' }, weakness: ['finished stream', 'ends with 200'], cause: /ended at once with 200/, exitCode: 1 },
  { flaw: 'forgets while away', verdicts: { 'exact cursor': 'silent gap', 'first event': 'correct' }, cause: /Nothing is stored while no client/, exitCode: 1 },
  { flaw: 'trusts any cursor', verdicts: { ...SOUND, 'ahead of the head': 'rebase', garbage: 'silent gap' }, cause: /treated as “nothing missed”/, exitCode: 1 },
  { flaw: 'leaks', verdicts: { ...SOUND, 'other session': 'leak' }, cause: /another client's messages/, exitCode: 1 },
  { flaw: 'refuses', verdicts: { 'exact cursor': 'explicit refusal', 'caught up': 'explicit refusal', garbage: 'correct' }, cause: /nothing to resume from/, exitCode: 1 },
  { flaw: 'one connection only', verdicts: { ...SOUND, 'half-open': 'explicit refusal' }, weakness: ['half-open', 'locked out by a half-open connection'], exitCode: 0 },
  { flaw: 'loses at hand-over', verdicts: { 'busy stream': 'silent gap', 'first event': 'correct' }, cause: /hand-over from replay to live/, exitCode: 1 },
  { flaw: 'shuffles', verdicts: { 'first event': 'out of order' }, cause: /sorted by something/, exitCode: 1 },
  { flaw: 'mixes streams', verdicts: { 'exact cursor': 'correct', 'first event': 'duplicate' }, cause: /events of other streams/, exitCode: 1 },
  { flaw: 'never finishes', verdicts: { ...SOUND, 'finished stream': 'hang' }, cause: /end of a stream is not remembered/, exitCode: 1 }
]

t.test('says what is wrong with a flawed server, and why', async t => {
  t.jobs = 6
  for (const { flaw, verdicts, weakness, cause, exitCode, timeoutMs = PATIENT_MS, ms = 50 } of CASES) {
    t.test(flaw, async t => {
      const { url } = await startFlawedServer(t, flaw)
      // That nothing else is wrong needs all scenarios; that something is needs those that show it.
      const only = exitCode === 0 ? {} : { only: Object.keys(verdicts) as ScenarioName[] }
      const report = await diagnose(url, { ...only, floodEvents: 40, timeoutMs, wanted: [{ tool: 'tick', args: { n: 12, ms } }] })
      t.match(verdictsOf(report), verdicts)
      t.equal(exitCodeOf(report), exitCode)
      if (cause !== undefined) t.match(report.causes.join('\n'), cause)
      if (cause === undefined && exitCode === 0) t.same(report.causes, [])
      const weak = report.scenarios.filter(({ name }) => name === 'caught up' || name === weakness?.[0])
        .flatMap(({ name, judgement }) => judgement.weaknesses.map(found => `${name}: ${found}`))
      if (weakness !== undefined) t.ok(weak.includes(weakness.join(': ')), `weakness: ${weakness[1]}`)
      if (flaw === 'none') t.same(weak, [], 'a resume that begins with an ID is not silent')
      if (flaw === 'loops') {
        t.equal(report.scenarios.find(({ name }) => name === 'exact cursor')?.seen.resumes.length, 3, 'shows the loop without joining it')
      }
    })
  }
})

t.test('says “nothing promised” of a server without IDs', async t => {
  const { url } = await startFlawedServer(t, 'stateless')
  const report = await diagnose(url)
  t.equal(report.summary, 'nothing promised')
  t.match(report.because, /^Design B: no event carries an ID/)
  t.same(verdictsOf(report), { 'exact cursor': 'not offered' })
  t.equal(exitCodeOf(report), 0)
})

t.test('the standalone stream', async t => {
  t.jobs = 3
  const wanted = [{ tool: 'emit', args: { n: 12, ms: 50 } }]
  const cases: Array<[Flaw, string, number]> = [['none', 'correct', 0], ['forgets while away', 'silent gap', 1], ['deaf', 'hang', 1]]
  for (const [flaw, verdict, exitCode] of cases) {
    t.test(flaw, async t => {
      const { url } = await startFlawedServer(t, flaw, [emitTool(false)])
      const report = await diagnose(url, { wanted, timeoutMs: flaw === 'deaf' ? HANG_MS : PATIENT_MS })
      t.equal(verdictsOf(report)['exact cursor, standalone'], verdict)
      t.equal(exitCodeOf(report), exitCode)
      if (exitCode === 1) t.match(report.causes[0], /^On the standalone stream: /)
    })
  }
})

t.test('another replica', async t => {
  t.jobs = 2
  const { url } = await startFlawedServer(t, 'none')
  t.test('of the same server', async t => {
    const report = await diagnose(url, { url2: new URL(url), floodEvents: 0 })
    t.equal(verdictsOf(report)['other replica'], 'correct')
    t.equal(exitCodeOf(report), 0)
  })
  t.test('that does not know the session', async t => {
    const other = await startFlawedServer(t, 'none')
    const report = await diagnose(url, { url2: new URL(other.url), floodEvents: 0 })
    t.equal(verdictsOf(report)['other replica'], 'explicit refusal')
    t.match(report.causes, [/memory of one process/])
    t.equal(exitCodeOf(report), 1)
  })
})

t.test('what it may call', async t => {
  t.jobs = 3
  t.test('leaves tools alone that nobody calls harmless', async t => {
    const { url, calls } = await startFlawedServer(t, 'none', [tickTool(false), emitTool(false)])
    const report = await diagnose(url, { wanted: [] })
    t.notOk(calls.includes('tick') || calls.includes('emit'))
    t.equal(report.summary, 'could not tell')
    t.match(report.because, /2 tools .*name one with --tool/)
    t.equal(exitCodeOf(report), 2)
  })
  t.test('finds one that is annotated, and makes arguments up', async t => {
    const { url } = await startFlawedServer(t, 'none', [emitTool(false), tickTool(true)])
    const report = await diagnose(url, { wanted: [], floodEvents: 0 })
    t.match(report.streams, [{ call: 'tools/call tick {"n":12,"ms":50}', carrier: 'request', messages: 13 }])
    t.equal(report.summary, 'sound')
  })
  t.test('never floods with a tool that is only named', async t => {
    const { url } = await startFlawedServer(t, 'clamps to the floor', [tickTool(false)])
    const report = await diagnose(url)
    t.match(report.scenarios.find(({ name }) => name === 'older than retained'), { judgement: { verdict: 'could not tell' }, words: /--flood N allows it/ })
  })
})

t.test('cannot tell completeness when no two runs are alike', async t => {
  const { url } = await startFlawedServer(t, 'none', [diceTool()])
  const report = await diagnose(url, { wanted: [{ tool: 'dice', args: { n: 6, ms: 20 } }], floodEvents: 0 })
  t.equal(verdictsOf(report)['exact cursor'], 'could not tell')
  t.equal(exitCodeOf(report), 2)
})

t.test('the command', async t => {
  t.test('prints text, JSON and a picture, without colour off a terminal', async t => {
    const directory = await mkdtemp(join(tmpdir(), 'probe-'))
    t.teardown(() => rm(directory, { recursive: true }))
    const { url } = await startFlawedServer(t, 'replays everything')
    const svg = join(directory, 'out.svg')
    const args = [url, '--tool', 'tick', '--args', '{"n":6,"ms":20}', '--timeout', '5000', '--flood', '0']
    const json = await command([...args, '--json', '--svg', svg])
    t.equal(json.code, 1)
    t.match(JSON.parse(json.stdout), { summary: 'flawed', exitCode: 1, scenarios: [{ name: 'unique IDs' }, { name: 'exact cursor', verdict: 'duplicate', sound: false }] })
    t.match(json.stderr, /exact cursor\n/, 'progress goes to stderr')
    t.match(await readFile(svg, 'utf8'), /^<svg .*<title>Flawed/s)
    const text = await command(args)
    t.equal(text.code, 1)
    t.match(text.stdout, /duplicate +exact cursor\n.*came again although the client had them.*Likely cause: The cursor is not used/s)
    t.notMatch(text.stdout, '\u001b')
  })

  t.test('paints on a terminal, unless NO_COLOR is set', async t => {
    const { url } = await startFlawedServer(t, 'refuses')
    const args = [url, '--tool', 'tick', '--args', '{"n":4,"ms":5}', '--timeout', '5000', '--flood', '0']
    t.match((await command(args, { isTTY: true })).stdout, '\u001b[31mexplicit refusal')
    t.notMatch((await command(args, { isTTY: true, env: { NO_COLOR: '1' } })).stdout, '\u001b')
  })

  t.test('says what is the matter, without a stack trace', async t => {
    const html = await serveHtml(t)
    const mcp = await startFlawedServer(t, 'none')
    const cases: Array<[args: string[], message: RegExp]> = [
      [[], /which URL\?/],
      [['nonsense'], /not an http or https URL: nonsense/],
      [['ftp://127.0.0.1/'], /not an http or https URL/],
      [[mcp.url, 'http://127.0.0.1/'], /--url2/],
      [[mcp.url, '--wrong'], /--wrong/],
      [[mcp.url, '--timeout', 'soon'], /--timeout wants a whole number from 1/],
      [[mcp.url, '--args', '{}'], /belongs after the --tool/],
      [[mcp.url, '--tool', 'tick', '--args', '[1]'], /--args wants a JSON object/],
      [[mcp.url, '--header', 'nonsense'], /--header wants 'Name: value'/],
      [[mcp.url, '--tool', 'absent'], /no tool “absent”; it has tick/],
      [[`http://127.0.0.1:${await freePort()}/mcp`], /cannot reach http.*ECONNREFUSED/],
      [[html], /not an MCP Streamable HTTP endpoint: HTTP 200, text\/html, “hello”/],
      [[`${html}silent`, '--timeout', '200'], /did not answer initialize within 200 ms/],
      [[`${html}login`], /wants authorization \(HTTP 401\): pass --header/]
    ]
    for (const [args, message] of cases) {
      const { code, stdout, stderr } = await command(args)
      t.match({ code, stderr, stdout }, { code: 2, stderr: message, stdout: '' }, args.join(' '))
      t.notMatch(stderr, /^ +at /m)
    }
  })

  t.test('is the bin of the package', async t => {
    const main = fileURLToPath(new URL('../lib/cli/main.ts', import.meta.url))
    t.match(await readFile(main, 'utf8'), /^#!\/usr\/bin\/env node\n/)
    t.match(await run(main, ['--help']), { code: 0, stdout: /probe +cut and resume/ })
    t.match(await run(main, ['nonsense']), { code: 2, stderr: /no command "nonsense"/ })
    t.match(await run(main, ['probe', '--help']), { code: 0, stdout: /Usage: mcp-resume probe URL/ })
  })
})

function diagnose (url: string, options: Partial<ProbeOptions> = {}): Promise<Report> {
  return probe({ url: new URL(url), headers: {}, protocol: '2025-11-25', timeoutMs: PATIENT_MS, wanted: TICK, log: () => {}, ...options })
}

function verdictsOf (report: Report): Record<string, string> {
  return Object.fromEntries(report.scenarios.map(({ name, carrier, judgement }) =>
    [carrier === 'standalone' ? `${name}, standalone` : name, judgement.verdict]))
}

async function command (args: readonly string[], { isTTY = false, env = {} }: { isTTY?: boolean, env?: NodeJS.ProcessEnv } = {}) {
  let stdout = ''
  let stderr = ''
  const code = await probeCommand(args, {
    stdout: { isTTY, write: text => { stdout += text } },
    stderr: { isTTY: false, write: text => { stderr += text } },
    env
  })
  return { code, stdout, stderr }
}

function run (main: string, args: readonly string[]): Promise<{ code: number, stdout: string, stderr: string }> {
  return new Promise(resolve => {
    const { NODE_OPTIONS: _, ...env } = process.env
    execFile(process.execPath, ['--import', 'tsx', main, ...args], { env }, (error, stdout, stderr) => {
      resolve({ code: typeof error?.code === 'number' ? error.code : 0, stdout, stderr })
    })
  })
}

async function serveHtml (t: Owner): Promise<string> {
  const server = createServer((request, response) => {
    if (request.url === '/silent') return
    response.writeHead(request.url === '/login' ? 401 : 200, { 'content-type': 'text/html' }).end('hello')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(async () => {
    server.closeAllConnections()
    server.close()
    await once(server, 'close')
  })
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/`
}
