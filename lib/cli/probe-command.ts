import { writeFile } from 'node:fs/promises'
import { parseArgs } from 'node:util'
import type { Command, Io } from './command.ts'
import type { Wanted } from './discover.ts'
import { ProbeError } from './mcp-session.ts'
import { probe } from './probe.ts'
import type { ProbeOptions } from './probe.ts'
import { exitCodeOf, formatJson, formatText, printable } from './report.ts'
import { drawTimeline } from './timeline-svg.ts'

const HELP = `Usage: mcp-resume probe URL [options]

Cuts and resumes SSE streams of any MCP Streamable HTTP server and says what came of it.

  --tool NAME       a tool to call that sends progress or other messages; may be given again
  --args JSON       arguments of the --tool before it, an object
  --url2 URL        another replica of the same server
  --protocol DATE   protocol version to ask for (2025-11-25)
  --header 'N: V'   a header for every request; may be given again
  --timeout MS      how long an answer, or the next message, is waited for (4000)
  --flood N         send about N events to push an old one out of the buffer; 0: do not try
                    (1200 for tools that are annotated read-only or idempotent, else 0)
  --json            print the report as JSON
  --svg FILE        draw every connection and what came on it
  --help            print this

Only tools named with --tool, or annotated read-only or idempotent, are called, about fifteen times.
Exit code: 0 sound or nothing promised, 1 flawed, 2 could not tell.
`
const DEFAULT_TIMEOUT_MS = 4000
const DEFAULT_PROTOCOL = '2025-11-25'

interface Settings extends Omit<ProbeOptions, 'log'> {
  readonly json: boolean
  readonly svg?: string
}

/** `mcp-resume probe URL`. */
export const probeCommand: Command = async (argv, io) => {
  try {
    const settings = readArguments(argv)
    if (settings === undefined) {
      io.stdout.write(HELP)
      return 0
    }
    const report = await probe({ ...settings, log: text => progress(io, text) }).finally(() => clearProgress(io))
    io.stdout.write(settings.json ? formatJson(report) : formatText(report, coloured(io)))
    if (settings.svg !== undefined) await writeFile(settings.svg, drawTimeline(report))
    return exitCodeOf(report)
  } catch (error) {
    if (error instanceof ProbeError && error.nothingPromised) {
      io.stdout.write(`Design B: ${printable(error.message)}; nothing is promised and nothing can be resumed.\n`)
      return 0
    }
    io.stderr.write(`mcp-resume probe: ${printable(error instanceof Error ? error.message : String(error))}\n`)
    return 2
  }
}

function readArguments (argv: readonly string[]): Settings | undefined {
  const { values, positionals, tokens } = parse(argv)
  if (values.help === true) return undefined
  const [address, ...more] = positionals
  if (address === undefined) throw new ProbeError('which URL? See mcp-resume probe --help')
  if (more.length > 0) throw new ProbeError(`one URL at a time; for another replica use --url2 ${more[0]!}`)
  const flood = values.flood === undefined ? undefined : wholeNumber('--flood', values.flood, 0)
  return {
    url: readUrl(address),
    headers: Object.fromEntries((values.header ?? []).map(readHeader)),
    protocol: values.protocol ?? DEFAULT_PROTOCOL,
    timeoutMs: values.timeout === undefined ? DEFAULT_TIMEOUT_MS : wholeNumber('--timeout', values.timeout, 1),
    wanted: readWanted(tokens.flatMap(({ name, value }) => name === undefined || value === undefined ? [] : { name, value })),
    json: values.json === true,
    ...(values.url2 !== undefined && { url2: readUrl(values.url2) }),
    ...(values.svg !== undefined && { svg: values.svg }),
    ...(flood !== undefined && { floodEvents: flood })
  }
}

function parse (argv: readonly string[]) {
  const parsed = parseArgs({
    args: [...argv],
    allowPositionals: true,
    tokens: true,
    options: {
      tool: { type: 'string', multiple: true },
      args: { type: 'string', multiple: true },
      header: { type: 'string', multiple: true },
      url2: { type: 'string' },
      protocol: { type: 'string' },
      timeout: { type: 'string' },
      flood: { type: 'string' },
      svg: { type: 'string' },
      json: { type: 'boolean' },
      help: { type: 'boolean', short: 'h' }
    }
  })
  const tokens = parsed.tokens.map(token => token.kind === 'option' ? { name: token.name, value: token.value } : { name: undefined, value: undefined })
  return { values: parsed.values, positionals: parsed.positionals, tokens }
}

function readUrl (text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined
  if (url === undefined || !/^https?:$/.test(url.protocol)) throw new ProbeError(`not an http or https URL: ${text}`)
  return url
}

function readHeader (text: string): [string, string] {
  const match = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):\s*(.*)$/.exec(text)
  if (match === null) throw new ProbeError(`--header wants 'Name: value', not ${JSON.stringify(text)}`)
  return [match[1]!.toLowerCase(), match[2]!]
}

function wholeNumber (name: string, text: string, least: number): number {
  const value = Number(text)
  if (!Number.isSafeInteger(value) || value < least) throw new ProbeError(`${name} wants a whole number from ${least}, not ${JSON.stringify(text)}`)
  return value
}

function readWanted (options: ReadonlyArray<{ name: string, value: string }>): Wanted[] {
  const wanted: Array<{ tool: string, args?: Record<string, unknown> }> = []
  for (const { name, value } of options) {
    if (name === 'tool') wanted.push({ tool: value })
    if (name !== 'args') continue
    const last = wanted.at(-1)
    if (last === undefined) throw new ProbeError('--args belongs after the --tool it is for')
    last.args = readObject(value)
  }
  return wanted
}

function readObject (text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text)
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>
  } catch {}
  throw new ProbeError(`--args wants a JSON object, not ${text}`)
}

// One line that is overwritten is for people; a log file gets a line for each step.
function progress (io: Io, text: string): void {
  io.stderr.write(io.stderr.isTTY === true ? `\r\u001b[K… ${printable(text)}` : `${printable(text)}\n`)
}

function clearProgress (io: Io): void {
  if (io.stderr.isTTY === true) io.stderr.write('\r\u001b[K')
}

function coloured ({ stdout, env }: Io): boolean {
  return stdout.isTTY === true && (env['NO_COLOR'] ?? '') === ''
}
