import t from 'tap'
import { explain } from '../lib/cli/cause.ts'
import { compareIds, forgeAhead, inferIdShape } from '../lib/cli/id-shape.ts'
import type { Got, Observation, Resume } from '../lib/cli/observation.ts'
import { announcesLoss, readFrame, readHeader } from '../lib/cli/signal.ts'
import { planArguments } from '../lib/cli/tool-args.ts'
import { layOut } from '../lib/cli/timeline.ts'
import { drawTimeline } from '../lib/cli/timeline-svg.ts'
import { judge } from '../lib/cli/verdict.ts'
import type { Verdict } from '../lib/cli/verdict.ts'
import { putInWords } from '../lib/cli/words.ts'

// A stream of six messages with the IDs 1 to 6, cut after the second.
const KEYS = ['progress 1', 'progress 2', 'progress 3', 'progress 4', 'progress 5', 'result']
const SSE = 'text/event-stream'
const gap = { outcome: 'gap', cause: 'evicted', missed: 2, via: 'header' } as const
const future = { outcome: 'future', cause: 'ahead', via: 'header' } as const
const caughtUp = { outcome: 'resumed', cause: 'caught-up', via: 'header' } as const

t.test('a resume is judged by what came', async t => {
  const rest = [3, 4, 5, 6]
  const cases: Array<[about: string, seen: Observation, verdict: Verdict, sound: boolean | undefined]> = [
    ['all of it', cut(sse(rest)), 'correct', true],
    ['all of it over two connections', cut({ ...sse([3, 4]), endedBy: 'probe' }, sse([5, 6])), 'correct', true],
    ['all of it from a server that ends every answer', cut(sse([3]), sse([4]), sse([5, 6])), 'correct', true],
    ['nothing, left open', cut(open([])), 'hang', false],
    ['not even a status', cut(nothing()), 'hang', false],
    ['the beginning, left open', cut(open([3, 4])), 'hang', false],
    ['nothing, ended, three times', cut(sse([]), sse([]), sse([])), 'reconnect loop', false],
    ['a hole', cut(sse([5, 6])), 'silent gap', false],
    ['a hole in the middle', cut(sse([3, 5, 6])), 'silent gap', false],
    ['204 although messages are owed', cut(status(204)), 'silent gap', false],
    ['everything again', cut(sse([1, 2, ...rest])), 'duplicate', false],
    ['the cursor itself again', cut(sse([2, ...rest])), 'duplicate', false],
    ['one twice', cut(sse([3, 4, 4, 5, 6])), 'duplicate', false],
    ['a repeat and a hole', cut(sse([1, 5, 6])), 'silent gap', false],
    ['a swap', cut(sse([3, 5, 4, 6])), 'out of order', false],
    ['IDs from 1', cut(resume({ got: rest.map((n, i) => got(n, String(i + 1))) })), 'rebase', false],
    ['lower IDs that were never used', cut(resume({ got: rest.map((n, i) => got(n, `${i}`)) })), 'rebase', false],
    ['known messages under new IDs', cut(resume({ got: [1, 2, ...rest].map((n, i) => got(n, String(i + 3))) })), 'rebase', false],
    ['messages of another stream', cut(resume({ got: [{ ...got(3), from: 'other stream' }, ...rest.map(n => got(n))] })), 'duplicate', false],
    ['messages of another session', cut(resume({ got: [{ ...got(3), from: 'other session' }] })), 'leak', false],
    ['pings in between', cut(resume({ got: [...rest.map(n => got(n)), ping(), ping()] })), 'correct', true],
    ['a refusal', cut(status(400)), 'explicit refusal', false],
    ['an unknown session', cut(status(404)), 'explicit refusal', false],
    ['a refusal at first', cut(status(409), sse(rest)), 'correct', true],
    ['a reset', cut({ ...nothing(), error: 'ECONNRESET' }), 'explicit refusal', false],
    ['a gap that cannot be', cut({ ...sse([5, 6]), signal: gap }), 'explicit refusal', false],
    ['a page', cut({ ...status(200), contentType: 'text/html' }), 'could not tell', undefined],
    ['all of it, when runs differ', { ...cut(sse(rest)), trusted: false }, 'could not tell', undefined],
    ['nothing, when runs differ', { ...cut(open([])), trusted: false }, 'hang', false],
    ['a repeat, when runs differ', { ...cut(sse([2, ...rest])), trusted: false }, 'duplicate', false],
    ['no GET at all', cut(status(405)), 'not offered', false],
    ['never made', { ...cut(), skipped: 'no time' }, 'could not tell', undefined],

    ['finished: 204', finished(status(204)), 'correct', true],
    ['finished: refused', finished(status(400)), 'explicit refusal', true],
    ['finished: an end', finished(sse([])), 'correct', true],
    ['finished: silence', finished(open([])), 'hang', false],
    ['finished: open, but it said so', finished({ ...open([]), signal: caughtUp }), 'correct', true],
    ['finished: the last one again', finished(sse([6])), 'duplicate', false],

    ['old: everything', { ...cut(sse(rest)), scenario: 'older than retained' }, 'could not tell', undefined],
    ['old: an announced gap', { ...cut({ ...sse([5, 6]), signal: gap }), scenario: 'older than retained' }, 'correct', true],
    ['old: refused', { ...cut(status(400)), scenario: 'older than retained' }, 'explicit refusal', true],
    ['old: clamped', { ...cut(sse([5, 6])), scenario: 'older than retained' }, 'silent gap', false],

    ['ahead: refused', ahead(status(400)), 'explicit refusal', true],
    ['ahead: told', ahead({ ...sse([5, 6]), signal: future }), 'correct', true],
    ['ahead: told, and all again', ahead({ ...sse([1, 2, ...rest]), signal: future }), 'correct', true],
    ['ahead: no further', ahead(status(204)), 'explicit refusal', true],
    ['ahead: silence', ahead(open([])), 'hang', false],
    ['ahead: goes on below it', ahead(sse([4, 5, 6])), 'rebase', false],

    ['garbage: 400', { ...cut(status(400)), scenario: 'garbage' }, 'correct', true],
    ['garbage: a crash', { ...cut(status(500)), scenario: 'garbage' }, 'explicit refusal', true],
    ['garbage: from the start', { ...cut(sse([1, 2, ...rest])), scenario: 'garbage' }, 'duplicate', false],
    ['garbage: from now on', { ...cut(sse([5, 6])), scenario: 'garbage' }, 'silent gap', false],

    ['half-open: takes over', { ...cut(sse(rest)), scenario: 'half-open' }, 'correct', true],
    ['half-open: once the old one is closed', { ...cut(status(409)), scenario: 'half-open', afterClose: sse(rest) }, 'explicit refusal', true],
    ['half-open: never', { ...cut(status(409)), scenario: 'half-open', afterClose: status(409) }, 'explicit refusal', false],

    ['IDs: each once', ids(['1', '2'], ['3', '4']), 'correct', true],
    ['IDs: again on the other stream', ids(['1', '2'], ['1', '2']), 'rebase', false],
    ['IDs: all the same', ids(['1', '1']), 'rebase', false],
    ['IDs: falling', ids(['1', '3', '2']), 'out of order', false],
    ['IDs: none', ids([], []), 'not offered', undefined]
  ]
  for (const [about, seen, verdict, sound] of cases) {
    const judgement = judge(seen)
    t.same([judgement.verdict, judgement.sound], [verdict, sound], about)
    t.match(putInWords(seen, judgement), /^[A-Z0-9].*\.$/s, `${about}: in words`)
  }
})

t.test('nothing passes for correct but the rest, once and in order', async t => {
  const rest = '3456'
  let correct = 0
  for (const came of arrangements(['1', '2', '3', '4', '5', '6'], 5)) {
    for (const endedBy of ['server', undefined] as const) {
      const seen = cut({ ...sse([...came].map(Number)), ...(endedBy === undefined ? { endedBy: undefined } : {}) } as Resume)
      const { verdict, sound } = judge(seen)
      if (verdict === 'correct') correct++
      if ((verdict === 'correct') !== (came === rest) || sound === undefined) return t.fail(`${came}, ended by ${endedBy}: ${verdict}`)
    }
  }
  t.equal(correct, 2)
})

t.test('weaknesses', async t => {
  const rest = [3, 4, 5, 6]
  const caught = (resume: Resume): Observation => ({ ...cut(resume), scenario: 'caught up' })
  t.same(judge(caught(sse(rest))).weaknesses, ['silent when caught up'])
  t.same(judge(caught({ ...sse(rest), primed: true })).weaknesses, [], 'an ID at once')
  t.same(judge(caught({ ...sse(rest), signal: caughtUp })).weaknesses, [], 'a header')
  t.same(judge(caught(resume({ got: rest.map(n => ({ ...got(n), live: false })) }))).weaknesses, [], 'something to replay')
  t.same(judge(cut(status(409), sse(rest))).weaknesses, ['refuses for a while'])
  t.same(judge({ ...cut({ ...sse([5, 6]), signal: { ...gap, missed: 7 } }), scenario: 'older than retained' }).weaknesses, ['wrong count'])
  t.same(judge({ ...cut({ ...sse([5, 6]), signal: gap }), scenario: 'older than retained' }).weaknesses, [])
  t.same(judge({ ...cut({ ...sse(rest), signal: gap }), scenario: 'first event' }).weaknesses, ['false alarm'])
  t.same(judge({ ...cut(sse(rest)), scenario: 'half-open', unread: rest.map(n => got(n)) }).weaknesses, ['both connections got it'])
  t.same(judge(ids(['1', undefined, '2'])).weaknesses, ['events without IDs'])
})

t.test('event IDs of any form', async t => {
  const ours = ['47-12-1-k3f9', '50-13-1-p2vv', '51-14-1-a8c1']
  const sdk = ['0b-1f_1795989253682_26ql8pjc', '0b-1f_1795989253682_9931', '0b-1f_1795989253700_aa']
  t.match(inferIdShape(['9', '10']), { form: 'integer' })
  t.match(inferIdShape(['7']), { form: 'integer' })
  t.match(inferIdShape(ours), { form: 'counted', counters: [0, 1] })
  t.match(inferIdShape(sdk), { form: 'counted', counters: [2] })
  t.match(inferIdShape(['f3a', '1bc']), { form: 'opaque' })
  t.match(inferIdShape([]), { form: 'opaque' })
  t.ok(compareIds(inferIdShape(['1', '2']), '9', '10')! < 0, 'as numbers')
  t.ok(compareIds(inferIdShape(ours), '47-12-1-k3f9.2f', '50-13-1-p2vv')! < 0, 'with a suffix')
  t.equal(compareIds(inferIdShape(sdk), sdk[0]!, sdk[1]!), 0, 'one millisecond is no order')
  t.equal(compareIds(inferIdShape(['f3a', '1bc']), 'f3a', '1bc'), undefined)
  t.equal(forgeAhead(inferIdShape(['1', '2']), '2'), '1002')
  t.equal(forgeAhead(inferIdShape(ours), ours[2]!), '1051-1014-1-a8c1')
  t.equal(forgeAhead(inferIdShape(sdk), sdk[2]!), '0b-1f_1795992853700_aa', 'an hour ahead of a clock')
  t.equal(forgeAhead(inferIdShape(['f3a', '1bc']), 'f3a'), undefined)
})

t.test('signals', async t => {
  t.same(readHeader('gap;cause=evicted;missed=12;head="47-12-1-k3f9"'), { outcome: 'gap', cause: 'evicted', missed: 12, via: 'header' })
  t.same(readHeader('resumed; cause=caught-up; replay=0'), { outcome: 'resumed', cause: 'caught-up', via: 'header' })
  t.same([gap, future, caughtUp, undefined].map(announcesLoss), [true, true, false, false])
  const frame = { atMs: 0, messages: [{ method: 'notifications/message', params: { level: 'error', data: { outcome: 'gap', cause: 'evicted', missed: 3 } } }] }
  t.same(readFrame(frame), { outcome: 'gap', cause: 'evicted', missed: 3, via: 'notice' })
  t.equal(readFrame({ atMs: 0, messages: [{ method: 'notifications/message', params: { level: 'info', data: 'gap' } }] }), undefined)
  t.same(readFrame({ atMs: 0, event: 'reset', messages: [] }), { outcome: 'reset', via: 'event' })
  t.equal(readFrame({ atMs: 0, event: 'message', messages: [] }), undefined)
})

t.test('arguments from a schema', async t => {
  const tool = (properties: Record<string, object>, required = Object.keys(properties)) => ({ name: 'x', inputSchema: { type: 'object', properties, required } })
  t.same(planArguments(tool({ n: { type: 'integer' }, ms: { type: 'integer' } })).args, { n: 12, ms: 50 })
  t.same(planArguments(tool({ duration: { type: 'number', default: 10 }, steps: { type: 'number', default: 5 } }, [])).args, { duration: 1, steps: 12 })
  t.same(planArguments(tool({ text: { type: 'string' }, way: { enum: ['a', 'b'] }, deep: { type: 'object' }, yes: { type: 'boolean' }, some: { type: 'array' } })).args,
    { text: 'probe', way: 'a', deep: {}, yes: false, some: [] })
  t.same(planArguments(tool({ count: { type: 'integer', maximum: 5 } })).args, { count: 5 })
  t.same(planArguments(tool({ text: { type: 'string' } }, [])).args, {}, 'optional ones are left out')
  t.same(planArguments(tool({ n: { type: 'integer' }, ms: { type: 'integer', minimum: 1 } }), { n: 3, ms: 9 }).flood?.(500, 0), { n: 500, ms: 1 })
  t.equal(planArguments(tool({ text: { type: 'string' } })).flood, undefined)
})

t.test('the likely cause', async t => {
  const causes = (...seen: Observation[]): string[] => explain(seen.map(seen => ({ seen, judgement: judge(seen) })))
  const restarted = cut(resume({ got: [3, 4, 5, 6].map((n, i) => got(n, String(i + 1))) }))
  const clamped: Observation = { ...cut(sse([5, 6])), scenario: 'older than retained' }
  t.same(causes(cut(sse([3, 4, 5, 6]))), [])
  t.match(causes(restarted, clamped, ids(['1'], ['1'])), [/per-connection counter with a session-wide buffer/])
  t.equal(causes(restarted, clamped, ids(['1'], ['1'])).length, 1, 'the rest follows from it')
  t.match(causes(clamped), [/clamped/])
  t.match(causes(cut(sse([5, 6]))), [/Nothing is stored/])
  t.match(causes(cut(sse([3, 5, 6]))), [/hand-over/])
  t.match(causes(cut(open([3, 4]))), [/hand-over/], 'the tail is lost, although live messages came')
  t.match(causes(cut({ ...open([3, 4]), got: [3, 4].map(n => ({ ...got(n), live: false })) })), [/not joined to the running call/])
  t.match(causes({ ...cut(open([])), carrier: 'standalone' }), [/^On the standalone stream: .*even an exact cursor gets nothing/])
  t.match(causes({ ...cut(status(404)), scenario: 'other replica' }), [/memory of one process/])
  t.match(causes(clamped, cut(resume({ got: [{ ...got(1), from: 'other session' }] }))), [/another client's messages/, /clamped/])
})

t.test('the picture', async t => {
  const report = (seen: Observation) => {
    const judgement = judge(seen)
    return { name: seen.scenario, carrier: seen.carrier, seen, judgement, words: putInWords(seen, judgement) }
  }
  t.test('has a row for each connection and a mark for each fate', async t => {
    const panels = layOut([report(cut({ ...sse([2, 3]), endedBy: 'probe' }, sse([5, 6])))])
    t.equal(panels.length, 1)
    t.match(panels[0]!.columns.map(({ label }) => label), ['p1', 'p2', 'p3', 'p4', 'p5', 'result'])
    t.match(panels[0]!.rows, [
      { label: 'POST', end: 'cut', marks: [{ column: 0, kind: 'live', id: '1' }, { column: 1 }] },
      { label: 'GET 2', cursorAt: 1, end: 'cut', marks: [{ column: 1, kind: 'repeated' }, { column: 2, kind: 'live' }] },
      { label: 'GET 2', end: 'ended by the server', marks: [{ column: 4 }, { column: 5 }, { column: 3, kind: 'missing' }] }
    ])
    const [holes] = layOut([report(cut({ ...sse([4]), endedBy: 'probe' }, sse([6])))])
    t.match(holes!.rows.slice(1), [
      { marks: [{ column: 3 }, { column: 2, kind: 'missing' }] },
      { marks: [{ column: 5 }, { column: 4, kind: 'missing' }] }
    ])
  })
  t.test('squeezes what is alike', async t => {
    const expected = [...Array.from({ length: 1200 }, (_, i) => `progress ${i + 1}`), 'result']
    const tail = expected.slice(-10).map((key, i): Got => ({ key, id: String(1192 + i), from: 'stream', atMs: 0, live: false }))
    const seen: Observation = { ...cut(resume({ cursor: '1', got: tail })), scenario: 'older than retained', expected, before: [got(1)] }
    const [panel] = layOut([report(seen)])
    t.ok(panel!.columns.length < 30)
    t.equal(panel!.columns.reduce((sum, { skips = 1 }) => sum + skips, 0), 1201, 'every message is accounted for')
    t.ok(panel!.rows.every(({ marks }) => marks.every(({ column }) => column < panel!.columns.length)))
  })
  t.test('is well-formed whatever the server is called', async t => {
    const reports = [report(cut(sse([5, 6]))), report(finished(status(204))), report(ahead(open([])))]
    const svg = drawTimeline({
      url: 'http://127.0.0.1/?a=1&b=<2>',
      server: '<script>"\u0007',
      protocol: '2025-11-25',
      stateful: true,
      summary: 'flawed',
      streams: [],
      scenarios: reports,
      causes: ['a < b & c']
    })
    t.notMatch(svg, /<script|&b=/)
    t.notOk(svg.includes('\u0007'))
    const tags: string[] = []
    for (const [, close, name, self] of svg.matchAll(/<(\/?)([a-z]+)[^>]*?(\/?)>/g)) {
      if (close === '/') t.equal(tags.pop(), name)
      else if (self !== '/') tags.push(name!)
    }
    t.same(tags, [])
    for (const words of ['silent gap', 'owed, never came', 'HTTP 204', 'ahead of the head']) t.match(svg, words)
  })
})

function got (n: number, id = String(n)): Got {
  return { key: KEYS[n - 1]!, id, from: 'stream', atMs: n, live: true }
}

function ping (): Got {
  return { key: 'ping {}', from: 'stream', atMs: 9, live: true }
}

function resume (parts: Partial<Resume>): Resume {
  return { cursor: '2', status: 200, contentType: SSE, primed: false, got: [], endedBy: 'server', openedMs: 0, lastedMs: 100, ...parts }
}

function sse (numbers: readonly number[]): Resume {
  return resume({ got: numbers.map(n => got(n)) })
}

function open (numbers: readonly number[]): Resume {
  const { endedBy: _, ...rest } = sse(numbers)
  return rest
}

function status (status: number): Resume {
  return resume({ status, contentType: 'application/json', body: '' })
}

function nothing (): Resume {
  const { status: _, contentType: __, endedBy: ___, ...rest } = resume({})
  return rest
}

function cut (...resumes: Resume[]): Observation {
  return {
    scenario: 'exact cursor',
    carrier: 'request',
    expected: KEYS,
    trusted: true,
    shape: inferIdShape(['1', '2']),
    before: [got(1), got(2)],
    resumes
  }
}

function finished (resume: Resume): Observation {
  return { ...cut({ ...resume, cursor: '6' }), scenario: 'finished stream', before: KEYS.map((_, i) => got(i + 1)) }
}

function ahead (resume: Resume): Observation {
  return { ...cut({ ...resume, cursor: '1002' }), scenario: 'ahead of the head' }
}

function ids (...streams: Array<Array<string | undefined>>): Observation {
  return {
    ...cut(),
    scenario: 'unique IDs',
    streams: streams.map(stream => stream.map((id, i): Got => ({ key: KEYS[i]!, from: 'stream', atMs: i, live: true, ...(id !== undefined && { id }) })))
  }
}

function arrangements (letters: readonly string[], length: number): string[] {
  if (length === 0) return ['']
  return ['', ...letters.flatMap(letter => arrangements(letters, length - 1).map(rest => letter + rest))]
}
