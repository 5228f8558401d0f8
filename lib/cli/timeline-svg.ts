import type { Report } from './probe.ts'
import { layOut } from './timeline.ts'
import type { Mark, MarkKind, Panel, Row } from './timeline.ts'

const LEFT = 210
const CELL = 44
/** What fits at full size; more columns share the room. */
const COLUMNS = 24
const LABELLED = 30
const ROW = 42
const HEAD = 64
const RIGHT = 330
const PAD = 24
const TEXT_WIDTH = 6.1

const INK = '#1b1f24'
const DIM = '#5b6470'
const RED = '#c5221f'
const KINDS: Readonly<Record<MarkKind, { draw (x: number, y: number): string, about: string }>> = {
  live: { about: 'received live', draw: (x, y) => circle(x, y, 7, 'fill="#1a62c6"') },
  replayed: { about: 'replayed', draw: (x, y) => circle(x, y, 6, 'fill="#ffffff" stroke="#0b7a53" stroke-width="4"') },
  repeated: { about: 'repeated: the client had it', draw: (x, y) => circle(x, y, 7, `fill="#f6b73c" stroke="${RED}" stroke-width="2.5"`) },
  'went back': { about: 'its ID repeats or falls', draw: (x, y) => polygon(`${x},${y + 8} ${x - 8},${y - 6} ${x + 8},${y - 6}`, 'fill="#8430ce"') },
  missing: { about: 'owed, never came', draw: (x, y) => circle(x, y, 7, `fill="none" stroke="${RED}" stroke-width="1.8" stroke-dasharray="3 2.4"`) + cross(x, y, 3.2) },
  unread: { about: 'sent, but nobody read it', draw: (x, y) => circle(x, y, 5, 'fill="#ffffff" stroke="#9aa3ae" stroke-width="1.8"') }
}

/** Draws what every connection carried: one row each, a column for each message of the stream, and what went wrong. */
export function drawTimeline (report: Report): string {
  const panels = layOut(report.scenarios)
  const columns = Math.max(16, ...panels.map(panel => Math.min(COLUMNS, panel.columns.length)))
  const width = PAD * 2 + LEFT + (columns + 1) * CELL + RIGHT
  const parts: string[] = []
  let y = PAD
  const line = (text: string, size: number, attributes = `fill="${INK}"`): void => {
    for (const piece of wrap(text, (width - 2 * PAD) / (size * 0.53))) {
      y += size + 5
      parts.push(write(PAD, y, piece, `font-size="${size}" ${attributes}`))
    }
  }
  line(`Resuming ${report.server} at ${report.url}`, 18, `fill="${INK}" font-weight="700"`)
  line(headline(report), 13, `fill="${report.summary === 'flawed' ? RED : DIM}" font-weight="600"`)
  for (const cause of report.causes.slice(0, 2)) line(cause, 12, `fill="${DIM}"`)
  y += 14
  parts.push(legend(y))
  y += 66
  for (const panel of panels) {
    const drawn = drawPanel(panel, y, width)
    parts.push(drawn.svg)
    y = drawn.bottom
  }
  const height = y + PAD
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" ` +
    `font-family="Helvetica, Arial, 'DejaVu Sans', sans-serif" role="img">\n<title>${escape(headline(report))}</title>\n` +
    `<rect width="${width}" height="${height}" fill="#ffffff"/>\n${parts.join('\n')}\n</svg>\n`
}

function headline ({ summary, because, scenarios }: Report): string {
  const judged = scenarios.filter(({ judgement }) => judgement.sound !== undefined)
  const flawed = judged.filter(({ judgement }) => judgement.sound === false)
  const text = { sound: 'Sound', flawed: 'Flawed', 'nothing promised': 'Nothing promised', 'could not tell': 'Could not tell' }[summary]
  if (judged.length === 0) return because ?? text
  return `${text}: ${flawed.length} of ${judged.length} scenarios failed`
}

function legend (y: number): string {
  const items: Array<readonly [(x: number, y: number) => string, string]> = [
    ...Object.values(KINDS).map(({ draw, about }) => [draw, about] as const),
    [(x, y) => cursor(x, y), 'the cursor: go on after this'],
    [(x, y) => endMark('cut', x, y), 'connection cut'],
    [(x, y) => endMark('stalled', x, y), 'left open, not read'],
    [(x, y) => endMark('ended by the server', x, y), 'ended by the server'],
    [(x, y) => endMark('still open', x - 8, y), 'still open'],
    [(x, y) => endMark('refused', x, y), 'refused']
  ]
  const perRow = Math.ceil(items.length / 2)
  let x = 0
  return items.map(([draw, about], i) => {
    if (i % perRow === 0) x = PAD + 10
    const row = y + 12 + Math.floor(i / perRow) * 26
    const item = draw(x, row) + write(x + 16, row + 4, about, `font-size="11.5" fill="${DIM}"`)
    x += 44 + about.length * TEXT_WIDTH
    return item
  }).join('')
}

function drawPanel (panel: Panel, top: number, width: number): { svg: string, bottom: number } {
  const { columns, rows, title, verdict, sound, words } = panel
  const colour = sound === false ? RED : sound === undefined ? '#9a6700' : '#0b7a53'
  const parts = [
    `<line x1="${PAD}" y1="${top}" x2="${width - PAD}" y2="${top}" stroke="#d5dae0"/>`,
    write(PAD, top + 24, title, `font-size="14" font-weight="700" fill="${INK}"`),
    write(PAD + Math.max(LEFT, 24 + title.length * 8.4), top + 24, verdict, `font-size="14" font-weight="700" fill="${colour}"`)
  ]
  let y = top + 28
  for (const piece of wrap(words, (width - 2 * PAD) / TEXT_WIDTH).slice(0, 4)) {
    y += 15
    parts.push(write(PAD, y, piece, `font-size="11.5" fill="${DIM}"`))
  }
  y += HEAD - 34
  const grid = gridOf(columns.length)
  columns.forEach(({ label, skips }, column) => {
    const x = grid.x(column)
    const labelled = column % Math.ceil(LABELLED / grid.cell) === 0
    parts.push(write(x, y, skips !== undefined ? `+${skips}` : labelled ? label : '', `font-size="11" text-anchor="middle" fill="${DIM}"`))
    parts.push(`<line x1="${x}" y1="${y + 6}" x2="${x}" y2="${y + 6 + rows.length * ROW}" stroke="#eceff2"${skips === undefined ? '' : ' stroke-dasharray="2 4" stroke-width="2"'}/>`)
  })
  for (const row of rows) {
    y += ROW
    parts.push(drawRow(row, y - 14, grid))
  }
  return { svg: parts.join('\n'), bottom: y + 22 }
}

interface Grid {
  readonly cell: number
  /** The right edge. */
  readonly end: number
  x (column: number): number
}

function gridOf (columns: number): Grid {
  const cell = Math.min(CELL, CELL * COLUMNS / columns)
  const x = (column: number): number => Math.round((PAD + LEFT + (column + 0.5) * cell) * 10) / 10
  return { cell, x, end: x(columns - 1) + CELL / 2 }
}

function drawRow (row: Row, y: number, grid: Grid): string {
  const { marks, cursorAt, resumes, end, notes, label } = row
  const came = marks.filter(({ kind }) => kind !== 'missing' && kind !== 'unread').map(({ column }) => column)
  const start = !resumes || cursorAt === undefined ? PAD + LEFT - 16 : grid.x(cursorAt)
  const last = came.length === 0 ? start : grid.x(Math.max(...came))
  const stop = end === 'still open' ? grid.end + 22 : Math.max(last, start) + 22
  const left = came.length === 0 ? start : Math.min(start, grid.x(Math.min(...came)))
  return [
    write(PAD, y + 4, label, `font-size="12" fill="${INK}"`),
    `<line x1="${left}" y1="${y}" x2="${stop}" y2="${y}" stroke="#aab2bc" stroke-width="2"${end === 'still open' ? ' stroke-dasharray="6 4"' : ''}/>`,
    ...(resumes && cursorAt !== undefined ? [cursor(start, y)] : []),
    ...(resumes && cursorAt === undefined ? [write(start - 4, y + 5, '?', `font-size="15" font-weight="700" fill="${INK}"`)] : []),
    ...stack(marks).map(([mark, lift]) => drawMark(mark, y - lift, grid)),
    endMark(end, stop, y),
    write(Math.max(stop, grid.end) + 26, y + 4, fit(notes.join(' · '), RIGHT - 60), `font-size="11.5" fill="${DIM}"`)
  ].join('')
}

/** Two marks in one cell are drawn one above the other. */
function stack (marks: readonly Mark[]): Array<[Mark, number]> {
  const seen = new Map<number, Set<MarkKind>>()
  return marks.flatMap(mark => {
    const kinds = seen.get(mark.column) ?? new Set<MarkKind>()
    seen.set(mark.column, kinds)
    // A squeezed column stands for many messages that look alike.
    if (kinds.has(mark.kind)) return []
    kinds.add(mark.kind)
    return [[mark, (kinds.size - 1) * 12] as [Mark, number]]
  })
}

function drawMark ({ column, kind, id }: Mark, y: number, grid: Grid): string {
  const x = grid.x(column)
  // Crowded dots shrink, but not out of sight.
  if (grid.cell < LABELLED) return `<g transform="translate(${x} ${y}) scale(${Math.max(0.6, grid.cell / LABELLED).toFixed(2)})">${KINDS[kind].draw(0, 0)}</g>`
  return KINDS[kind].draw(x, y) + (id === undefined ? '' : write(x, y + 19, id, `font-size="9.5" text-anchor="middle" fill="${DIM}"`))
}

function endMark (end: Row['end'], x: number, y: number): string {
  switch (end) {
    case 'cut': return path(`M${x + 3} ${y - 10} l-5 6 l6 3 l-6 3 l6 3 l-5 6`, `stroke="${RED}" stroke-width="2.2"`)
    case 'stalled': return path(`M${x - 2} ${y - 8} v16 M${x + 4} ${y - 8} v16`, `stroke="${DIM}" stroke-width="3"`)
    case 'ended by the server': return path(`M${x} ${y - 8} v16`, `stroke="${INK}" stroke-width="3.4"`)
    case 'still open': return path(`M${x} ${y - 6} l9 6 l-9 6`, `stroke="${DIM}" stroke-width="2.2"`)
    case 'refused': return circle(x + 2, y, 8, `fill="none" stroke="${RED}" stroke-width="2.2"`) + path(`M${x - 4} ${y + 6} l12 -12`, `stroke="${RED}" stroke-width="2.2"`)
  }
}

function cursor (x: number, y: number): string {
  return polygon(`${x - 3},${y - 9} ${x + 7},${y} ${x - 3},${y + 9}`, `fill="${INK}"`)
}

function cross (x: number, y: number, size: number): string {
  return path(`M${x - size} ${y - size} l${2 * size} ${2 * size} M${x - size} ${y + size} l${2 * size} ${-2 * size}`, `stroke="${RED}" stroke-width="1.6"`)
}

function circle (x: number, y: number, r: number, attributes: string): string {
  return `<circle cx="${x}" cy="${y}" r="${r}" ${attributes}/>`
}

function polygon (points: string, attributes: string): string {
  return `<polygon points="${points}" ${attributes}/>`
}

function path (d: string, attributes: string): string {
  return `<path d="${d}" fill="none" ${attributes}/>`
}

function write (x: number, y: number, text: string, attributes: string): string {
  return text === '' ? '' : `<text x="${x}" y="${y}" ${attributes}>${escape(text)}</text>`
}

function fit (text: string, width: number): string {
  const count = Math.floor(width / TEXT_WIDTH)
  return text.length <= count ? text : `${text.slice(0, count - 1)}…`
}

function wrap (text: string, count: number): string[] {
  const lines: string[] = ['']
  for (const word of text.split(' ')) {
    const line = lines.at(-1)!
    if (line !== '' && line.length + word.length >= count) lines.push(word)
    else lines[lines.length - 1] = line === '' ? word : `${line} ${word}`
  }
  return lines
}

function escape (text: string): string {
  // Control characters have no place in XML, and servers choose the text.
  return text.replace(/[<>&"]/g, char => `&#${char.charCodeAt(0)};`).replace(/[\u0000-\u001f\ufffe\uffff]/g, '�') // eslint-disable-line no-control-regex
}
