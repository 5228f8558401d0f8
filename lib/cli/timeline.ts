import type { IdShape } from './id-shape.ts'
import type { Got, Observation, Resume } from './observation.ts'
import type { ScenarioReport } from './probe.ts'
import { titleOf } from './report.ts'
import { quoteSignal } from './signal.ts'

/** One scenario as a picture: a column for each message of the stream, a row for each connection. */
export interface Panel {
  readonly title: string
  readonly verdict: string
  readonly sound: boolean | undefined
  readonly words: string
  readonly columns: readonly Column[]
  readonly rows: readonly Row[]
}

export interface Column {
  readonly label: string
  /** Stands for so many messages that all fared alike. */
  readonly skips?: number
}

export interface Row {
  readonly label: string
  readonly marks: readonly Mark[]
  /** The column after which the client asked to go on: -1 before the first, undefined for a cursor that is no position. */
  readonly cursorAt?: number
  readonly resumes: boolean
  readonly end: 'cut' | 'stalled' | 'ended by the server' | 'still open' | 'refused'
  readonly notes: readonly string[]
}

export type MarkKind = 'live' | 'replayed' | 'repeated' | 'went back' | 'missing' | 'unread'

export interface Mark {
  readonly column: number
  readonly kind: MarkKind
  readonly id?: string
}

const MAX_COLUMNS = 120
const EDGE = 3

/** The pictures of all scenarios that came to a connection. */
export function layOut (reports: readonly ScenarioReport[]): Panel[] {
  return reports.flatMap(report => {
    const rows = report.seen.scenario === 'unique IDs' ? idRows(report) : resumeRows(report)
    if (rows.length === 0) return []
    const { verdict, sound } = report.judgement
    return { title: titleOf(report), verdict, sound, words: report.words, ...squeeze(report.seen.expected.map(shortKey), rows) }
  })
}

function idRows ({ seen, judgement }: ScenarioReport): Row[] {
  return (seen.streams ?? []).map((stream, i) => ({
    label: `${seen.carrier === 'request' ? 'POST' : 'GET'}, call ${i + 1}`,
    marks: stream.flatMap(got => mark(seen, got, judgement.reusedIds.includes(got.id ?? '') ? 'went back' : 'live')),
    resumes: false,
    end: 'ended by the server',
    notes: []
  }))
}

function resumeRows ({ seen, judgement }: ScenarioReport): Row[] {
  const { before, resumes, carrier, scenario, unread = [], afterClose } = seen
  if (resumes.length === 0) return []
  const had = new Set(before.map(({ key }) => key))
  const all = [...resumes, ...(afterClose === undefined ? [] : [afterClose])]
  const rows = all.map((resume, i): Row => {
    const held = [...before, ...all.slice(0, i).flatMap(({ got }) => got)]
    const marks = resume.got.flatMap(got => {
      const again = had.has(got.key)
      had.add(got.key)
      return mark(seen, got, judgement.verdict === 'rebase' && judgement.wentBack.includes(got) ? 'went back' : again ? 'repeated' : got.live ? 'live' : 'replayed')
    })
    return resumeRow(seen, resume, marks, held)
  })
  // A refusal owes nothing; the client knows.
  const refused = rows.at(-1)!.end === 'refused' || judgement.verdict === 'explicit refusal'
  const missing = refused ? [] : judgement.missing.map(key => seen.expected.indexOf(key))
  const whole = scenario === 'finished stream' || scenario === 'first event' || scenario === 'older than retained'
  const uncut = whole ? seen.expected.slice(before.length).map((_, i): Mark => ({ column: before.length + i, kind: 'live' })) : []
  const first: Row = {
    label: carrier === 'request' ? 'POST' : 'GET',
    marks: [...before.flatMap(got => mark(seen, got, 'live')), ...uncut, ...unread.flatMap(got => mark(seen, got, 'unread'))],
    resumes: false,
    end: whole ? 'ended by the server' : scenario === 'half-open' ? 'stalled' : 'cut',
    notes: []
  }
  return [first, ...withHoles(rows, missing)]
}

/** A message is missing on the first connection that went past it, or else on the last one. */
function withHoles (rows: readonly Row[], missing: readonly number[]): Row[] {
  const passes = (row: Row, column: number): boolean => row.marks.some(mark => mark.column > column)
  return rows.map((row, i) => {
    const here = missing.filter(column => passes(row, column)
      ? !rows.slice(0, i).some(earlier => passes(earlier, column))
      : i === rows.length - 1 && !rows.some(earlier => passes(earlier, column)))
    return { ...row, marks: [...row.marks, ...here.map((column): Mark => ({ column, kind: 'missing' }))] }
  })
}

function resumeRow (seen: Observation, resume: Resume, marks: readonly Mark[], held: readonly Got[]): Row {
  const { cursor, status, endedBy, signal, primed, replica } = resume
  const at = positionOf(seen, cursor, held)
  const strays = resume.got.filter(({ from }) => from !== 'stream').length
  const refused = status !== 200 && status !== 204
  return {
    label: `GET ${cursor.length <= 18 ? cursor : `${cursor.slice(0, 8)}…${cursor.slice(-8)}`}${replica === true ? ', replica 2' : ''}`,
    marks,
    resumes: true,
    ...(at !== undefined && { cursorAt: at }),
    end: refused ? 'refused' : status === 204 ? 'ended by the server' : endedBy === 'probe' ? 'cut' : endedBy === 'server' ? 'ended by the server' : 'still open',
    notes: [
      ...(status === 200 ? [] : [status === undefined ? 'no answer' : `HTTP ${status}`]),
      ...(signal === undefined ? [] : [quoteSignal(signal)]),
      ...(primed && signal === undefined ? ['opening ID'] : []),
      ...(strays > 0 ? [`${strays} of other streams`] : [])
    ]
  }
}

/** The column a cursor stands for; the ID of an opening frame stands before the first one. */
function positionOf ({ scenario, expected, before }: Observation, cursor: string, held: readonly Got[]): number | undefined {
  if (scenario === 'garbage' || scenario === 'other session') return undefined
  const named = held.findLast(({ id, key }) => id === cursor && key !== undefined)?.key
  if (named !== undefined) return expected.indexOf(named)
  return scenario === 'ahead of the head' ? expected.length : before.length - 1
}

function mark ({ expected, shape }: Observation, { key, id, from }: Got, kind: MarkKind): Mark[] {
  const column = key === undefined || from !== 'stream' ? -1 : expected.indexOf(key)
  return column === -1 ? [] : [{ column, kind, ...(id !== undefined && { id: shortId(shape, id) }) }]
}

/** Replaces long runs of columns that look alike in every row by one. */
function squeeze (labels: readonly string[], rows: readonly Row[]): Pick<Panel, 'columns' | 'rows'> {
  if (labels.length <= MAX_COLUMNS) return { columns: labels.map(label => ({ label })), rows }
  const looks = labels.map((_, column) => rows.map(row => row.marks.filter(mark => mark.column === column).map(({ kind }) => kind).join('+')).join('|'))
  const columns: Column[] = []
  const newPlace = new Map<number, number>([[-1, -1]])
  for (let start = 0; start < labels.length;) {
    let end = start
    while (end + 1 < labels.length && looks[end + 1] === looks[start]) end++
    const hidden = end - start + 1 - 2 * EDGE
    for (let column = start; column <= end; column++) {
      const inner = hidden > 1 && column >= start + EDGE && column <= end - EDGE
      if (!inner) columns.push({ label: labels[column]! })
      else if (column === start + EDGE) columns.push({ label: '…', skips: hidden })
      newPlace.set(column, columns.length - 1)
    }
    start = end + 1
  }
  newPlace.set(labels.length, columns.length)
  return {
    columns,
    rows: rows.map(({ cursorAt, marks, ...row }) => ({
      ...row,
      ...(cursorAt !== undefined && { cursorAt: newPlace.get(cursorAt)! }),
      marks: marks.map(mark => ({ ...mark, column: newPlace.get(mark.column)! }))
    }))
  }
}

function shortKey (key: string, index: number): string {
  if (key.startsWith('progress ')) return `p${key.slice('progress '.length)}`
  return key.length <= 6 ? key : `#${index + 1}`
}

/** As much of an ID as tells it from its neighbours. */
function shortId ({ form, counters }: IdShape, id: string): string {
  if (form === 'opaque') return id.length <= 9 ? id : `…${id.slice(-6)}`
  if (form === 'integer') return id.length <= 16 ? id : `${id.slice(0, 15)}…`
  const parts = id.split(/[^0-9A-Za-z]+/)
  const counts = counters.flatMap(column => parts[column] ?? [])
  const short = counts.find(count => count.length <= 6) ?? counts[0]
  if (short === undefined) return id.slice(0, 6)
  return short.length <= 6 ? short : `…${short.slice(-4)}`
}
