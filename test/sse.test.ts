import { createParser, type EventSourceMessage } from 'eventsource-parser'
import fc from 'fast-check'
import t from 'tap'
import { formatEventId, parseEventId } from '../lib/event-id.ts'
import { encodeComment, encodeCursor, encodeJson, encodeMessage, encodeRetry } from '../lib/sse.ts'

interface Read { events: EventSourceMessage[], comments: string[], retries: number[], errors: string[] }

// Somebody else's reader: what we write is what it must read.
function read (...chunks: string[]): Read {
  const got: Read = { events: [], comments: [], retries: [], errors: [] }
  const parser = createParser({
    onEvent: event => { got.events.push(event) },
    onComment: comment => { got.comments.push(comment) },
    onRetry: retry => { got.retries.push(retry) },
    onError: error => { got.errors.push(error.message) }
  })
  for (const chunk of chunks) parser.feed(chunk)
  return got
}

const NASTY = ['\u2028', '\u2029', '\u0085', '\r', '\n', '\r\n', '\0', '\ufeff', '\u{1f600}', '\ud800', '\udc00', 'data: ', 'id: 1-0-1-aaaa', 'event: x', '\n\ndata: x\n\n', ':', '"', '\\']
const nastyText = fc.array(fc.oneof(fc.constantFrom(...NASTY), fc.string({ unit: 'binary' })), { maxLength: 6 }).map(parts => parts.join(''))
const message = fc.record({ jsonrpc: fc.constant('2.0'), method: nastyText, params: fc.oneof(fc.dictionary(nastyText, fc.jsonValue()), fc.record({ text: nastyText })) })

t.test('a message comes back from an independent parser, in one data line', async () => {
  fc.assert(fc.property(message, fc.boolean(), (value, withId) => {
    const id = withId ? formatEventId({ seq: 48, offset: 12, stream: 'x81mzq0d', tag: 'p2vv' }) : undefined
    const frame = encodeMessage(id, encodeJson(value))
    if (/[\r\u0085\u2028\u2029]/.test(frame) || frame.split('\n').length !== (withId ? 4 : 3)) return false
    for (const got of [read(frame), read(...frame)]) {
      const [event] = got.events
      if (got.errors.length > 0 || got.events.length !== 1 || event!.id !== id || event!.event !== undefined) return false
      if (JSON.stringify(JSON.parse(event!.data)) !== JSON.stringify(value)) return false
    }
    return true
  }))
})

t.test('B85: U+2028, U+2029 and U+0085 are escaped, everything else is left alone', async t => {
  t.equal(encodeJson({ text: 'a\u2028b\u2029c\u0085d' }), '{"text":"a\\u2028b\\u2029c\\u0085d"}')
  t.equal(encodeJson({ text: 'é\u{1f600}\u00a0\ufeff' }), '{"text":"é\u{1f600}\u00a0\ufeff"}')
  t.equal(encodeJson({ text: '\r\n' }), '{"text":"\\r\\n"}')
  t.equal(encodeJson({ '\u2028': 1 }), '{"\\u2028":1}', 'in names too')
  t.equal(encodeJson('\ud800'), '"\\ud800"', 'half a surrogate pair has no bytes of its own')
})

t.test('a message that is no JSON throws', async t => {
  const cycle: Record<string, unknown> = {}
  cycle['self'] = cycle
  t.throws(() => encodeJson(cycle), TypeError)
  t.throws(() => encodeJson({ n: 1n }), TypeError)
})

t.test('the frames, byte for byte', async t => {
  t.equal(encodeMessage('1-0-1-aaaa', '{}'), 'id: 1-0-1-aaaa\ndata: {}\n\n')
  t.equal(encodeMessage(undefined, '{}'), 'data: {}\n\n')
  t.equal(encodeCursor('1-0-1-aaaa.2f'), 'id: 1-0-1-aaaa.2f\ndata: \n\n')
  t.equal(encodeCursor('1-0-1-aaaa', 2000), 'id: 1-0-1-aaaa\nretry: 2000\ndata: \n\n')
  t.equal(encodeRetry(2000), 'retry: 2000\n\n')
  t.equal(encodeComment('ka'), ': ka\n')
})

t.test('a cursor frame moves the client and carries nothing; with retry it is one event all the same', async t => {
  const got = read(encodeCursor('47-12-1-k3f9.2f'), encodeCursor('47-12-1-k3f9.2g', 2500))
  t.strictSame(got.events.map(({ id, data }) => [id, data]), [['47-12-1-k3f9.2f', ''], ['47-12-1-k3f9.2g', '']])
  t.strictSame(got.retries, [2500])
  t.ok(got.events.every(({ id }) => parseEventId(id!) !== undefined))
  t.strictSame(read(encodeRetry(2500)), { events: [], comments: [], retries: [2500], errors: [] })
})

t.test('a comment between two frames is no event and changes neither', async t => {
  const frames = [encodeMessage('1-0-1-aaaa', '{"a":1}'), encodeComment('ka'), encodeComment('ka'), encodeCursor('2-1-1-bbbb'), encodeComment('ka')]
  const got = read(...frames.join(''))
  t.strictSame(got.comments, ['ka', 'ka', 'ka'])
  t.strictSame(got.events.map(({ id, data }) => [id, data]), [['1-0-1-aaaa', '{"a":1}'], ['2-1-1-bbbb', '']])
  t.strictSame(got.errors, [])
})
