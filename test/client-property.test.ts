// Any interleaving of what can happen to a stream, with a stock client behind the guard: each violation gets the name
// that a plain model gives it, and the application never sees a message out of order or after a hole nobody told it of.
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { setUpGuard } from './helpers/scripted-fetch.ts'

type Level = 'exact' | 'integer' | 'opaque'

/** An event of the server's log. `n` is its true place; numbering may lie about it. */
interface Event { readonly n: number, readonly id: string, readonly seq: number, readonly offset: number }

/** What the connection carries, and how it opens and breaks. */
type Step =
  | { readonly do: 'next' | 'drop' | 'again' | 'rebase' }
  | { readonly do: 'older', readonly back: number }
  | Cut

/** A break, and how the next connection opens. */
interface Cut {
  readonly do: 'cut'
  readonly gracefully: boolean
  readonly signal: keyof typeof SIGNALS
  /** It starts with the cursor again. */
  readonly prime: boolean
}

const SIGNALS = { none: undefined, resumed: 'resumed;cause=replay', gap: 'gap;cause=evicted;missed=1' } as const

const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 8, arbitrary: fc.constant<Step>({ do: 'next' }) },
  { weight: 1, arbitrary: fc.constantFrom<Step>({ do: 'drop' }, { do: 'again' }, { do: 'rebase' }) },
  { weight: 1, arbitrary: fc.nat(3).map((back): Step => ({ do: 'older', back: back + 1 })) },
  {
    weight: 3,
    arbitrary: fc.record<Cut>({
      do: fc.constant<'cut'>('cut'),
      gracefully: fc.boolean(),
      signal: fc.constantFrom<keyof typeof SIGNALS>('none', 'resumed', 'gap'),
      prime: fc.boolean()
    })
  }
)

/** A server that numbers as it is told to. */
function createSource (level: Level) {
  const log: Event[] = []
  let seq = 0
  let offset = 0
  let epoch = 0
  return {
    log,
    next (): Event {
      const n = log.length
      seq++
      const id = level === 'exact' ? `${seq}-${offset}-1-${String(epoch).padStart(4, '0')}` : level === 'integer' ? String(seq) : `e${n}.x`
      const event = { n, id, seq, offset: offset++ }
      log.push(event)
      return event
    },
    rebase (): void {
      seq = offset = 0
      epoch++
    }
  }
}

/** What the client stands at. */
interface Position { readonly last: Event, readonly cursor: string, readonly passed: readonly Event[] }

/** The rules in plain words: what `event` is to a client that stands there. */
function model (level: Level, { last, cursor, passed }: Position, event: Event, reconnected: boolean): string | undefined {
  if (level === 'opaque') return passed.includes(event) ? 'duplicate' : undefined
  const ahead = level === 'exact' ? event.offset - last.offset : event.seq - last.seq
  const honest = level === 'integer' || event.seq - last.seq >= ahead
  if (honest && ahead === 1) return undefined
  if (honest && ahead > 1) return level === 'integer' && !reconnected ? undefined : 'gap'
  if (reconnected) return 'rebase'
  return event.id === cursor ? 'duplicate' : 'reorder'
}

/** Plays the steps against the guard and against the model. */
async function play (level: Level, steps: readonly Step[], sizes: readonly number[]) {
  const source = createSource(level)
  const order: Array<number | 'gap'> = []
  const { connect, violations } = setUpGuard({ onGap () { order.push('gap') } })

  const expected: Array<number | 'gap'> = []
  let position: Position | undefined
  let kind: string | undefined
  let claimed: string | undefined
  const rest = [...steps]
  let nonce = 0
  let opening: Cut = { do: 'cut', gracefully: false, signal: 'none', prime: false }
  for (;;) {
    // One connection: how it opens, what it carries, how it ends.
    const signal = position === undefined ? 'none' : opening.signal
    const connection = await connect({ claimed, signal: SIGNALS[signal] })
    if (connection.cursor !== (position?.cursor ?? null)) throw new Error(`resumed from ${connection.cursor}, not ${position?.cursor}`)
    let announced = signal === 'gap'
    if (announced) expected.push('gap')
    let reconnected = position !== undefined
    let silent = reconnected && signal === 'none'
    let wire = ''
    if (position !== undefined && opening.prime) {
      const cursor = level === 'exact' ? `${position.last.id}.${10 + nonce++}` : position.last.id
      position = { ...position, cursor }
      wire += `id: ${cursor}\ndata:\n\n`
      silent = false
      // The exact rule is the same on a fresh connection and on an old one.
      if (level === 'exact') reconnected = false
    }
    let cut: Cut | undefined
    while (rest.length > 0 && kind === undefined && cut === undefined) {
      const step = rest.shift()!
      if (step.do === 'cut') cut = step
      const event = take(source, step)
      if (event === undefined) continue
      wire += `id: ${event.id}\ndata: ${event.n}\n\n`
      if (position !== undefined && !announced) kind = model(level, position, event, reconnected)
      if (kind !== undefined) continue
      position = { last: event, cursor: event.id, passed: [...position?.passed ?? [], event] }
      expected.push(event.n)
      silent = reconnected = announced = false
    }
    const gracefully = cut?.gracefully ?? true
    if (kind === undefined && silent && gracefully) kind = 'silent'

    const bytes = new TextEncoder().encode(wire)
    for (let at = 0, i = 0; at < bytes.length; i++) {
      const size = 1 + sizes[i % sizes.length]!
      connection.body.send(bytes.subarray(at, at + size))
      at += size
    }
    if (gracefully) connection.body.end()
    else connection.body.fail(new Error('reset'))
    await connection.reader.ended
    order.push(...connection.reader.messages.map(Number))
    if (cut === undefined || kind !== undefined) break
    claimed = connection.reader.lastEventId
    opening = cut
  }
  return { kind, expected, order, violations, log: source.log }
}

/** The event that a step puts on the wire, if any. */
function take (source: ReturnType<typeof createSource>, step: Step): Event | undefined {
  switch (step.do) {
    case 'next': return source.next()
    case 'again': return source.log.at(-1)
    case 'older': return source.log.at(-1 - step.back)
    case 'drop': source.next(); return undefined
    case 'rebase': source.rebase(); return undefined
    case 'cut': return undefined
  }
}

const next: Step = { do: 'next' }
const cut: Cut = { do: 'cut', gracefully: false, signal: 'none', prime: false }

/** So that each kind is seen whatever the seed. */
const EXAMPLES: Step[][] = [
  [next, cut, { do: 'drop' }, next],
  [next, next, cut, { do: 'older', back: 1 }],
  [next, next, { do: 'older', back: 1 }],
  [next, { do: 'again' }],
  [next, cut, { ...cut, gracefully: true }]
]

for (const level of ['exact', 'integer', 'opaque'] as const) {
  t.test(level, async t => {
    const kinds = new Map<string, number>()
    const steps = fc.array(step, { maxLength: 25 })
    const sizes = fc.array(fc.nat(40), { minLength: 1, maxLength: 5 })
    await fc.assert(fc.asyncProperty(steps, sizes, async (steps, sizes) => {
      const { kind = 'in order', expected, order, violations, log } = await play(level, steps, sizes)
      kinds.set(kind, (kinds.get(kind) ?? 0) + 1)
      assert.deepEqual(violations.map(({ kind }) => kind), kind === 'in order' ? [] : [kind])
      assert.deepEqual(order, expected)
      assert.ok(isSound(level, order, log), String(order))
    }), { numRuns: 200, examples: EXAMPLES.map(steps => [steps, [40]]) })
    for (const kind of ['in order', 'silent', 'duplicate', ...level === 'opaque' ? [] : ['gap', 'rebase', 'reorder']]) {
      t.ok(kinds.get(kind), `${kind}: ${kinds.get(kind) ?? 0}`)
    }
  })
}

/**
 * Judged by the log alone: rising, and with our IDs without a hole that was not announced. A numbering that starts again
 * and happens to have reached the very next number passes for the continuation: no ID names its predecessor.
 */
function isSound (level: Level, order: ReadonlyArray<number | 'gap'>, log: readonly Event[]): boolean {
  let last: Event | undefined
  for (const entry of order) {
    const event = entry === 'gap' ? undefined : log[entry]!
    if (event !== undefined && last !== undefined) {
      if (level === 'exact' && event.offset !== last.offset + 1) return false
      if (level !== 'opaque' && event.n <= last.n) return false
    }
    last = event
  }
  return true
}
