import fc from 'fast-check'
import t from 'tap'
import { formatEventId, parseEventId, sameEvent, type EventId } from '../lib/event-id.ts'
import { newTag, randomText } from '../lib/log/tags.ts'

const LARGEST = Number.MAX_SAFE_INTEGER
const BASE36 = [...'0123456789abcdefghijklmnopqrstuvwxyz']
const text = (length: number) => fc.string({ unit: fc.constantFrom(...BASE36), minLength: length, maxLength: length })
const number = (most: number) => fc.oneof(fc.integer({ min: 0, max: Math.min(most, 20) }), fc.maxSafeNat().map(n => n % (most + 1)), fc.constant(most))
const eventId = number(LARGEST - 1).chain(n => fc.record({
  seq: fc.constant(n + 1),
  offset: number(n),
  stream: fc.oneof(fc.constant('1'), text(8)),
  tag: text(4)
}))
const suffix = fc.integer({ min: 2, max: 4 }).chain(text)

// The grammar of DESIGN.md section 3 once more, without a regular expression and with big integers.
function reference (line: string): EventId | undefined {
  if (line.length > 64) return undefined
  const only = (part: string, alphabet: readonly string[]) => [...part].every(char => alphabet.includes(char))
  const decimal = (part: string): number | undefined => {
    if (part === '' || !only(part, BASE36.slice(0, 10)) || (part.length > 1 && part.startsWith('0'))) return undefined
    return BigInt(part) > BigInt(LARGEST) ? undefined : Number(part)
  }
  const [head = '', ending, ...more] = line.split('.')
  if (more.length > 0) return undefined
  if (ending !== undefined && (![2, 3, 4].includes(ending.length) || !only(ending, BASE36))) return undefined
  const parts = head.split('-')
  if (parts.length !== 4) return undefined
  const [seq, offset] = parts.slice(0, 2).map(decimal)
  const [stream, tag] = parts.slice(2) as [string, string]
  if (seq === undefined || offset === undefined || seq < 1 || offset >= seq) return undefined
  if (stream !== '1' && (stream.length !== 8 || !only(stream, BASE36))) return undefined
  return tag.length === 4 && only(tag, BASE36) ? { seq, offset, stream, tag } : undefined
}

t.test('an event ID round-trips, with and without a suffix', async t => {
  fc.assert(fc.property(eventId, suffix, (id, ending) => {
    const line = formatEventId(id)
    return line.length + 5 <= 64 && sameEvent(parseEventId(line)!, id) && sameEvent(parseEventId(`${line}.${ending}`)!, id) &&
      formatEventId(parseEventId(`${line}.${ending}`)!) === line
  }))
  t.strictSame(parseEventId('47-12-1-k3f9'), { seq: 47, offset: 12, stream: '1', tag: 'k3f9' })
  t.strictSame(parseEventId('48-0-x81mzq0d-p2vv.2f'), { seq: 48, offset: 0, stream: 'x81mzq0d', tag: 'p2vv' })
  t.strictSame(parseEventId(`${LARGEST}-${LARGEST - 1}-zzzzzzzz-zzzz.zzzz`), { seq: LARGEST, offset: LARGEST - 1, stream: 'zzzzzzzz', tag: 'zzzz' })
})

t.test('no edit of a valid ID is taken for an event that its text does not name', async t => {
  const lines = ['1-0-1-aaaa', '10-9-1-k3f9', '47-12-1-k3f9.2f', '48-0-x81mzq0d-p2vv', '9007199254740991-9007199254740990-zzzzzzzz-zzzz.zzzz']
  const chars = [...'0123456789', ...'abz', ...'AKZ', ...'-+.,_:;/\\eExX"\'%* \t\n\r\0', ...'٣１²é\u00a0\u2028\ufeff', '😀']
  let tried = 0
  let taken = 0
  const check = (line: string): void => {
    tried++
    const parsed = parseEventId(line)
    const expected = reference(line)
    if (expected !== undefined) taken++
    if (JSON.stringify(parsed) !== JSON.stringify(expected)) t.fail(`${JSON.stringify(line)} was read as ${JSON.stringify(parsed)}`)
    // What is accepted has one spelling.
    if (parsed !== undefined && formatEventId(parsed) !== line.split('.')[0]) t.fail(`${line} is not canonical`)
  }
  for (const line of lines) {
    for (let at = 0; at <= line.length; at++) {
      const [before, char, after] = [line.slice(0, at), line.slice(at, at + 1), line.slice(at + 1)]
      check(before + after)
      check(before)
      check(after)
      if (after !== '') check(before + after[0] + char + after.slice(1))
      for (const other of chars) {
        check(before + other + after)
        check(before + other + char + after)
      }
    }
  }
  t.comment(`${tried} edits, ${taken} of them valid IDs`)
  t.ok(taken > 100 && tried > 10_000)
  fc.assert(fc.property(fc.oneof(fc.string({ unit: 'binary' }), fc.string({ unit: fc.constantFrom(...BASE36, '-', '.') })), line => { check(line) }))
})

t.test('malformed', async t => {
  const refused: Record<string, string> = {
    empty: '',
    'a plain number': '47',
    'minus one': '-1',
    'leading zero in seq': '047-12-1-k3f9',
    'leading zero in offset': '47-012-1-k3f9',
    'offset 00': '47-00-1-k3f9',
    'seq 0': '0-0-1-k3f9',
    'sign in seq': '+47-12-1-k3f9',
    'negative offset': '47--1-1-k3f9',
    'space before': ' 47-12-1-k3f9',
    'space after': '47-12-1-k3f9 ',
    'line feed after': '47-12-1-k3f9\n',
    'arabic digits': '٤٧-١٢-1-k3f9',
    'full-width digits': '４７-12-1-k3f9',
    exponent: '1e3-12-1-k3f9',
    hexadecimal: '0x2f-12-1-k3f9',
    fraction: '47.0-12-1-k3f9',
    'seq 2^53': '9007199254740992-12-1-k3f9',
    'seq of 17 digits': '10000000000000000-12-1-k3f9',
    'seq of 40 digits': `${'9'.repeat(40)}-12-1-k3f9`,
    'offset equals seq': '47-47-1-k3f9',
    'offset above seq': '47-48-1-k3f9',
    'stream 2': '47-12-2-k3f9',
    'stream of 7 characters': '47-12-x81mzq0-k3f9',
    'stream of 9 characters': '47-12-x81mzq0d0-k3f9',
    'stream in upper case': '47-12-X81MZQ0D-k3f9',
    'no tag': '47-12-1-',
    'tag of 3 characters': '47-12-1-k3f',
    'tag of 5 characters': '47-12-1-k3f99',
    'tag in upper case': '47-12-1-K3F9',
    'suffix of 1 character': '47-12-1-k3f9.2',
    'suffix of 5 characters': '47-12-1-k3f9.2fabc',
    'empty suffix': '47-12-1-k3f9.',
    'two suffixes': '47-12-1-k3f9.2f.2f',
    'suffix in upper case': '47-12-1-k3f9.2F',
    'five parts': '47-12-1-k3f9-2f',
    '65 characters': `${'1'.repeat(65)}`,
    'a UUID': '6a1f7d1e-8f0c-4a43-9b55-0c3c7f2f6f7a'
  }
  for (const [what, line] of Object.entries(refused)) t.equal(parseEventId(line), undefined, what)
})

t.test('two IDs name one event only if all four parts agree', async t => {
  const id: EventId = { seq: 47, offset: 12, stream: '1', tag: 'k3f9' }
  t.ok(sameEvent(id, { ...id }))
  for (const other of [{ seq: 48 }, { offset: 11 }, { stream: 'x81mzq0d' }, { tag: 'k3f8' }]) t.notOk(sameEvent(id, { ...id, ...other }))
})

t.test('tags and names are base 36 and do not repeat themselves', async t => {
  const drawn = Array.from({ length: 2000 }, () => randomText(8))
  t.ok(drawn.every(name => /^[0-9a-z]{8}$/.test(name)))
  t.equal(new Set(drawn).size, drawn.length)
  t.equal(new Set(drawn.join('')).size, 36, 'every character occurs')
  t.match(newTag(), /^[0-9a-z]{4}$/)
})
