import type { Report, ScenarioReport } from './probe.ts'
import type { Verdict } from './verdict.ts'

/** The exit code of `mcp-resume probe`. */
export function exitCodeOf ({ summary }: Report): 0 | 1 | 2 {
  return summary === 'flawed' ? 1 : summary === 'could not tell' ? 2 : 0
}

type Paint = (text: string, colour: keyof typeof COLOURS) => string

const COLOURS = { red: 31, green: 32, yellow: 33, dim: 2, bold: 1 } as const
const WIDTH = 100

/** The report for a terminal, and for a bug report: everything in it can be pasted as it stands. */
export function formatText (report: Report, colour: boolean): string {
  const paint: Paint = (text, name) => colour ? `\u001b[${COLOURS[name]}m${printable(text)}\u001b[0m` : printable(text)
  const lines = [
    `${paint('mcp-resume probe', 'bold')} ${report.url}${report.url2 === undefined ? '' : ` and ${report.url2}`}`,
    `server    ${printable(report.server)}, protocol ${printable(report.protocol)}, ${report.stateful ? 'with sessions' : 'without sessions'}`,
    ...report.streams.map(({ call, carrier, messages, idForm, sampleId, trusted }) =>
      `call      ${printable(call)}: ${messages} messages on ${carrier === 'request' ? 'its own stream' : 'the standalone stream'}, ` +
      `${idForm} IDs like ${printable(sampleId)}${trusted ? '' : '; they differ from run to run, so completeness cannot be judged'}`),
    ''
  ]
  for (const scenario of report.scenarios) {
    const { judgement, words } = scenario
    lines.push(`${paint(judgement.verdict.padEnd(16), colourOf(judgement.verdict, judgement.sound))}  ${paint(titleOf(scenario), 'bold')}`)
    lines.push(...wrap(words, WIDTH - 4).map(line => `    ${paint(line, 'dim')}`))
  }
  if (report.scenarios.length > 0) lines.push('')
  lines.push(...conclusion(report, paint))
  return lines.join('\n') + '\n'
}

/** Text without the control characters a server may have put there to write on the user's terminal. */
export function printable (text: string): string {
  // eslint-disable-next-line no-control-regex
  return text.replace(/[\u0000-\u001f\u007f-\u009f]/g, '\ufffd')
}

/** The report for programs: everything that was seen and what was made of it. */
export function formatJson (report: Report): string {
  const { scenarios, ...rest } = report
  return JSON.stringify({
    ...rest,
    exitCode: exitCodeOf(report),
    scenarios: scenarios.map(({ name, carrier, words, judgement, seen }) => {
      const { scenario: _, carrier: __, shape: ___, ...observation } = seen
      return { name, carrier, ...judgement, words, observation }
    })
  }, null, 2) + '\n'
}

/** A scenario's name, with the stream when it is not the call's own. */
export function titleOf ({ name, carrier }: Pick<ScenarioReport, 'name' | 'carrier'>): string {
  return carrier === 'standalone' ? `${name} (standalone stream)` : name
}

function conclusion (report: Report, paint: Paint): string[] {
  const judged = report.scenarios.filter(({ judgement }) => judgement.sound !== undefined)
  const flawed = judged.filter(({ judgement }) => judgement.sound === false)
  switch (report.summary) {
    case 'sound':
      return [paint(`Sound: ${judged.length} of ${judged.length} scenarios that could be judged.`, 'green'), ...wrap(printable(report.because ?? ''), WIDTH)]
    case 'flawed':
      return [
        paint(`Flawed: ${flawed.length} of ${judged.length} scenarios.`, 'red'),
        ...report.causes.flatMap((cause, i) => wrap(`${i === 0 ? 'Likely cause' : 'Also'}: ${cause}`, WIDTH))
      ]
    case 'nothing promised':
      return wrap(printable(report.because ?? ''), WIDTH)
    case 'could not tell':
      return [paint('Could not tell.', 'yellow'), ...wrap(printable(report.because ?? 'The exact cursor could not be judged.'), WIDTH)]
  }
}

function colourOf (verdict: Verdict, sound: boolean | undefined): keyof typeof COLOURS {
  if (sound === false) return 'red'
  return sound === undefined || verdict === 'not offered' ? 'yellow' : 'green'
}

function wrap (text: string, width: number): string[] {
  const lines: string[] = []
  let line = ''
  for (const word of text.split(' ')) {
    if (line !== '' && line.length + 1 + word.length > width) {
      lines.push(line)
      line = word
    } else {
      line = line === '' ? word : `${line} ${word}`
    }
  }
  return line === '' ? lines : [...lines, line]
}
