import { compareIds } from './id-shape.ts'
import type { IdShape } from './id-shape.ts'
import { lastId } from './observation.ts'
import type { Got, Observation, Resume, ScenarioName } from './observation.ts'
import { announcesLoss } from './signal.ts'

/**
 * What a resume was. `leak` and `out of order` are rare but would be misnamed by any of the other words.
 */
export type Verdict =
  | 'correct' | 'explicit refusal' | 'silent gap' | 'duplicate' | 'rebase' | 'out of order' | 'hang' | 'reconnect loop'
  | 'leak' | 'not offered' | 'could not tell'

/** A verdict and the facts it rests on. */
export interface Judgement {
  readonly verdict: Verdict
  /** Undefined when this scenario proves nothing either way. */
  readonly sound?: boolean
  /** Owed messages that never came. */
  readonly missing: readonly string[]
  /** Messages that came although the client had them. */
  readonly repeated: readonly string[]
  /** Messages whose IDs count lower than what the client already had, or repeat another message's ID. */
  readonly wentBack: readonly Got[]
  /** Messages of another stream or session. */
  readonly strays: readonly Got[]
  /** IDs that name several messages of one session. */
  readonly reusedIds: readonly string[]
  /** Not wrong, but it costs clients something. */
  readonly weaknesses: readonly Weakness[]
}

export type Weakness =
  | 'silent when caught up' | 'ends with 200' | 'stays open' | 'refuses for a while' | 'locked out by a half-open connection'
  | 'both connections got it' | 'false alarm' | 'wrong count' | 'accepted silently' | 'server error' | 'events without IDs'

// These cursors are no position of this stream, so nobody may resume from them without a word.
const BOGUS: readonly ScenarioName[] = ['ahead of the head', 'garbage', 'other session']
// Here the server may honestly say no.
const MAY_REFUSE: readonly ScenarioName[] = [...BOGUS, 'older than retained', 'first event', 'finished stream']

/** Judges one scenario: a pure function of what was seen. */
export function judge (seen: Observation): Judgement {
  if (seen.scenario === 'unique IDs') return judgeIds(seen)
  if (seen.offered === false) return conclude('not offered', undefined)
  if (seen.skipped !== undefined || seen.resumes.length === 0) return conclude('could not tell', undefined)
  const facts = collect(seen)
  const result = decide(seen, facts)
  return { ...result, ...facts, weaknesses: weaknesses(seen, result.verdict, facts) }
}

type Facts = Pick<Judgement, 'missing' | 'repeated' | 'wentBack' | 'strays'>

function collect ({ scenario, shape, expected, before, resumes }: Observation): Facts {
  const all = resumes.flatMap(({ got }) => got)
  // Pings and the like belong to no sequence; they may come as often as they want.
  const sequence = new Set([...expected, ...before.flatMap(({ key }) => key ?? [])])
  const own = all.filter(({ from, key }) => from === 'stream' && key !== undefined && sequence.has(key))
  const had = new Map(before.map(({ key, id }) => [key, id]))
  const names = new Map(before.map(({ key, id }) => [id, key]))
  const repeated: string[] = []
  const renamed: Got[] = []
  for (const got of own) {
    const { key, id } = got
    if (had.has(key)) repeated.push(key!)
    const otherId = had.get(key)
    const otherKey = names.get(id)
    if (id !== undefined && ((otherKey !== undefined && otherKey !== key) || (otherId !== undefined && otherId !== id))) renamed.push(got)
    had.set(key, id)
    names.set(id, key)
  }
  const cursor = scenario === 'ahead of the head' ? resumes[0]?.cursor : undefined
  const came = new Set(own.map(({ key }) => key))
  return {
    missing: expected.slice(before.length).filter(key => !came.has(key)),
    repeated,
    wentBack: [...renamed, ...falling(shape, expected, before, cursor, own).filter(got => !renamed.includes(got))],
    strays: all.filter(({ from }) => from !== 'stream')
  }
}

/**
 * Messages whose ID counts lower than that of a message sent before them. The order in which they came does not matter:
 * a shuffled replay has sound IDs, a counter that started anew has not.
 */
function falling (shape: IdShape, expected: readonly string[], before: readonly Got[], cursor: string | undefined, own: readonly Got[]): Got[] {
  const place = new Map(expected.map((key, i) => [key, i]))
  const inOrder = [...own].sort((a, b) => (place.get(a.key!) ?? -1) - (place.get(b.key!) ?? -1))
  let highest = cursor ?? lastId(before)
  const old = new Set(before.map(({ key }) => key))
  return inOrder.filter(({ key, id }) => {
    // A repeat under its old ID is a repeat and nothing else.
    if (id === undefined || old.has(key)) return false
    const lower = highest !== undefined && (compareIds(shape, id, highest) ?? 0) < 0
    if (!lower) highest = id
    return lower
  })
}

function decide (seen: Observation, { missing, repeated, wentBack, strays }: Facts): Judgement {
  const { scenario, trusted, expected, before, resumes } = seen
  const bogus = BOGUS.includes(scenario)
  const final = resumes.at(-1)!
  const told = resumes.some(({ signal }) => announcesLoss(signal))
  const owes = expected.length > before.length

  if (strays.some(({ from }) => from === 'other session')) return conclude('leak', false)
  if (wentBack.length > 0 && !told) return conclude('rebase', false)
  if (strays.length > 0) return conclude('duplicate', false)
  if (repeated.length > 0 && !(bogus && told)) return conclude(missing.length > 0 && trusted && !told ? 'silent gap' : 'duplicate', false)
  if (final.status === undefined && final.error === undefined) return conclude('hang', false)
  if (final.status !== 200 || !streams(final)) return refused(seen, final)
  if (scenario === 'finished stream') return onFinished(final)
  if (told && missing.length > 0) return MAY_REFUSE.includes(scenario) ? conclude('correct', true) : conclude('explicit refusal', false)
  if (!trusted && resumes.some(({ got }) => got.length > 0)) return conclude('could not tell', undefined)
  if (missing.length > 0) {
    // While nothing newer has come either, the client is not past the hole: it waits, or comes back for ever.
    const waits = owes && missing.every((key, i) => key === expected.at(i - missing.length))
    if (!waits) return conclude('silent gap', false)
    if (final.endedBy === undefined) return conclude('hang', false)
    return conclude(loops(resumes) ? 'reconnect loop' : 'silent gap', false)
  }
  if (outOfOrder(seen)) return conclude('out of order', false)
  if (scenario === 'older than retained') return conclude('could not tell', undefined)
  return conclude('correct', true)
}

function refused ({ scenario, expected, before, afterClose, resumes }: Observation, { status, body }: Resume): Judgement {
  const owes = scenario !== 'finished stream' && expected.length > before.length
  if (status === 204) {
    if (!owes) return conclude('correct', true)
    return BOGUS.includes(scenario) ? conclude('explicit refusal', true) : conclude('silent gap', false)
  }
  // No GET at all: whoever sends IDs all the same lets clients believe in something that is not there.
  if (status === 405 || status === 501) return conclude('not offered', MAY_REFUSE.includes(scenario) ? undefined : false)
  const jsonError = status === 200 && /"error"/.test(body ?? '')
  if (status !== undefined && status < 400 && !jsonError) return conclude('could not tell', undefined)
  if (scenario === 'garbage' && status !== undefined && status < 500) return conclude('correct', true)
  if (scenario === 'half-open') return conclude('explicit refusal', resumes.length === 1 && afterClose?.status === 200 && afterClose.got.length > 0)
  return conclude('explicit refusal', status !== undefined && MAY_REFUSE.includes(scenario))
}

function onFinished ({ endedBy, signal }: Resume): Judgement {
  // Nothing can come on this stream any more; a client that asks and is not told so waits for ever.
  if (endedBy === undefined && signal === undefined) return conclude('hang', false)
  return conclude('correct', true)
}

function judgeIds ({ shape, streams = [] }: Observation): Judgement {
  const all = streams.flat()
  const ids = all.flatMap(({ id }) => id ?? [])
  if (ids.length === 0) return conclude('not offered', undefined)
  const reusedIds = [...new Set(ids.filter((id, i) => ids.indexOf(id) !== i))]
  const weaknesses: Weakness[] = ids.length < all.length ? ['events without IDs'] : []
  if (reusedIds.length > 0) return { ...conclude('rebase', false), reusedIds, weaknesses }
  const wentBack = streams.flatMap(stream => stream.filter(({ id }, i) => {
    const previous = stream[i - 1]?.id
    return id !== undefined && previous !== undefined && (compareIds(shape, id, previous) ?? 0) < 0
  }))
  return { ...conclude(wentBack.length > 0 ? 'out of order' : 'correct', wentBack.length === 0), wentBack, weaknesses }
}

function weaknesses (seen: Observation, verdict: Verdict, { missing }: Facts): Weakness[] {
  const { scenario, trusted, expected, resumes, afterClose, unread = [] } = seen
  const first = resumes[0]!
  const final = resumes.at(-1)!
  const signal = resumes.map(({ signal }) => signal).find(announcesLoss)
  const good = verdict === 'correct'
  const found: Array<[boolean, Weakness]> = [
    [good && scenario === 'caught up' && first.signal === undefined && !first.primed && first.got[0]?.live === true, 'silent when caught up'],
    [good && scenario === 'finished stream' && final.status === 200 && final.endedBy === 'server', 'ends with 200'],
    [good && scenario === 'finished stream' && final.status === 200 && final.endedBy === undefined, 'stays open'],
    [scenario !== 'half-open' && first.status === 409 && final.status !== 409, 'refuses for a while'],
    [scenario === 'half-open' && afterClose?.status === 200, 'locked out by a half-open connection'],
    [good && bothGotIt(expected.at(-1), final, unread), 'both connections got it'],
    [good && signal !== undefined && missing.length === 0 && !BOGUS.includes(scenario), 'false alarm'],
    [good && trusted && signal?.missed !== undefined && missing.length > 0 && !BOGUS.includes(scenario) && signal.missed !== missing.length, 'wrong count'],
    [good && final.status === 200 && BOGUS.includes(scenario) && signal === undefined, 'accepted silently'],
    [(final.status ?? 0) >= 500, 'server error']
  ]
  return found.flatMap(([holds, weakness]) => holds ? weakness : [])
}

// Sent while the new connection was already there, the answer belonged on that one alone.
function bothGotIt (last: string | undefined, { got }: Resume, unread: readonly Got[]): boolean {
  return got.some(({ key, live }) => key === last && live) && unread.some(({ key }) => key === last)
}

function outOfOrder ({ expected, resumes }: Observation): boolean {
  const places = resumes.flatMap(({ got }) => got).map(({ key }) => key === undefined ? -1 : expected.indexOf(key)).filter(place => place !== -1)
  return places.some((place, i) => i > 0 && place < places[i - 1]!)
}

/** Several answers of 200 in a row that ended by themselves and brought nothing. */
function loops (resumes: readonly Resume[]): boolean {
  const barren = resumes.filter(({ status, endedBy, got }) => status === 200 && endedBy === 'server' && got.every(({ key }) => key === undefined))
  return barren.length >= 3
}

function streams ({ contentType }: Resume): boolean {
  return (contentType ?? '').startsWith('text/event-stream')
}

function conclude (verdict: Verdict, sound: boolean | undefined): Judgement {
  return {
    verdict, ...(sound !== undefined && { sound }), missing: [], repeated: [], wentBack: [], strays: [], reusedIds: [], weaknesses: []
  }
}
