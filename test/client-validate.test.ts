import fc from 'fast-check'
import t from 'tap'
import { onReconnect, ResumeSequenceError, validateEventResume, validateResume } from '../lib/client/index.ts'
import { formatEventId } from '../lib/event-id.ts'

const MAX = Number.MAX_SAFE_INTEGER

/** The error, as something to look into. */
function thrown (run: () => unknown): Partial<ResumeSequenceError> {
  try {
    run()
  } catch (error) {
    return error as ResumeSequenceError
  }
  return {}
}

t.test('integers: the borders', async t => {
  const table: Array<[what: string, last: number, first: number, floor: number, outcome: string]> = [
    ['the next one', 47, 48, 1, 'resumed'],
    ['the next one, although the last is older than the floor', 47, 48, 48, 'resumed'],
    ['the first ever', 0, 1, 0, 'resumed'],
    ['the largest', MAX - 1, MAX, 0, 'resumed'],
    ['one missing', 47, 49, 1, 'gap'],
    ['one missing, the last is the floor', 47, 49, 47, 'gap'],
    ['nearly all missing', 0, MAX, 0, 'gap'],
    ['the last again', 47, 47, 1, 'rebase'],
    ['restarted at 1', 47, 1, 1, 'rebase'],
    ['restarted at 1, and the last is older than the floor', 47, 1, 60, 'rebase'],
    ['below zero', -1, 0, 0, 'resumed']
  ]
  for (const [what, last, first, floor, outcome] of table) t.equal(validateResume(last, first, floor), outcome, what)
})

t.test('integers: a gap below the floor cannot be healed', async t => {
  t.match(thrown(() => validateResume(46, 49, 47)), {
    name: 'ResumeSequenceError',
    code: 'MCP_RESUME_ERR_SEQUENCE',
    kind: 'gap',
    last: 46,
    received: 49,
    floor: 47,
    message: 'gap: 49 came after 46'
  })
})

t.test('integers: any three', async () => {
  const small = fc.integer({ min: 0, max: 12 })
  fc.assert(fc.property(small, small, small, (last, first, floor) => {
    const expected = first === last + 1 ? 'resumed' : first <= last ? 'rebase' : last < floor ? 'unrecoverable' : 'gap'
    let outcome: string
    try {
      outcome = validateResume(last, first, floor)
    } catch (error) {
      outcome = error instanceof ResumeSequenceError ? 'unrecoverable' : String(error)
    }
    return outcome === expected
  }))
})

t.test('what is no integer', async t => {
  const wrong: unknown[] = [undefined, null, '47', 47n, NaN, Infinity, 1.5, 2 ** 53, {}, [47]]
  for (const value of wrong) {
    t.throws(() => validateResume(value as number, 48, 0), TypeError)
    t.throws(() => validateResume(47, value as number, 0), TypeError)
    t.throws(() => validateResume(47, 48, value as number), TypeError)
  }
})

t.test('event IDs: the borders', async t => {
  const last = '47-12-1-k3f9'
  const table: Array<[what: string, first: string, outcome: string]> = [
    ['the next of the stream', '48-13-1-aaaa', 'resumed'],
    ['the next of the stream, other streams in between', '60-13-1-aaaa', 'resumed'],
    ['the re-priming frame', '47-12-1-k3f9.2f', 'resumed'],
    ['one missing', '49-14-1-aaaa', 'gap'],
    ['the event itself again', last, 'rebase'],
    ['its number under another tag', '47-12-1-aaaa', 'rebase'],
    ['its number under another tag, re-primed', '47-12-1-aaaa.2f', 'rebase'],
    ['its offset under a later number', '50-12-1-aaaa', 'rebase'],
    ['the next offset under an earlier number', '46-13-1-aaaa', 'rebase'],
    ['the next offset under the same number', '47-13-1-aaaa', 'rebase'],
    ['more offsets than numbers', '49-15-1-aaaa', 'rebase'],
    ['an older event', '40-10-1-aaaa', 'rebase'],
    ['the opening event', '1-0-1-aaaa', 'rebase'],
    ['the next offset of another stream', '48-13-x81mzq0d-aaaa', 'rebase']
  ]
  for (const [what, first, outcome] of table) t.equal(validateEventResume(last, first), outcome, what)
  t.equal(validateEventResume(`${last}.zz`, '48-13-1-aaaa'), 'resumed', 'the suffix of the last one does not matter')
  t.equal(validateEventResume(`${last}.zz`, `${last}.2f`), 'resumed')
  t.equal(validateEventResume(last, '49-14-1-aaaa', 12), 'gap', 'the last is the floor')
  t.match(thrown(() => validateEventResume(last, '49-14-1-aaaa', 13)), { kind: 'gap', last: 12, received: 14, floor: 13 })
  for (const wrong of ['', '47', '47-12-1', '47-47-1-k3f9', undefined, null, 47]) {
    t.throws(() => validateEventResume(wrong as string, last), TypeError)
    t.throws(() => validateEventResume(last, wrong as string), TypeError)
  }
  t.throws(() => validateEventResume(last, '48-13-1-aaaa', 1.5), TypeError)
})

t.test('event IDs follow the integers\' rules by offset', async () => {
  const offset = fc.integer({ min: 0, max: 12 })
  fc.assert(fc.property(offset, offset, offset, fc.nat(5), (last, first, floor, others) => {
    const id = (offset: number) => formatEventId({ seq: 1 + offset + (offset === first ? others : 0), offset, stream: '1', tag: 'aaaa' })
    const judge = (run: () => string) => {
      try {
        return run()
      } catch (error) {
        return (error as ResumeSequenceError).kind
      }
    }
    return judge(() => validateEventResume(id(last), id(first), floor)) === judge(() => validateResume(last, first, floor))
  }))
})

t.test('onReconnect throws unless the caller may read on', async t => {
  t.equal(onReconnect(47, 48), undefined)
  t.equal(onReconnect('47-12-1-k3f9', '48-13-1-aaaa'), undefined)
  t.match(thrown(() => onReconnect(47, 1, 1)), { name: 'ResumeSequenceError', kind: 'rebase', last: 47, received: 1, floor: 1 })
  t.match(thrown(() => onReconnect(47, 50, 40)), { kind: 'gap', last: 47, received: 50, floor: 40 })
  t.match(thrown(() => onReconnect(47, 50, 60)), { kind: 'gap', last: 47, received: 50, floor: 60 })
  t.match(thrown(() => onReconnect('47-12-1-k3f9', '49-14-1-aaaa')), { kind: 'gap', last: '47-12-1-k3f9', received: '49-14-1-aaaa' })
  t.match(thrown(() => onReconnect('47-12-1-k3f9', '3-2-1-aaaa')), { kind: 'rebase', last: '47-12-1-k3f9', received: '3-2-1-aaaa' })
  t.throws(() => onReconnect('47-12-1-k3f9', 48 as never), TypeError)
  t.throws(() => onReconnect(47, '48' as never), TypeError)
})
