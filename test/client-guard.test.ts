// What the guard takes for a violation, a gap or good order, on connections that the test writes frame by frame.
import t from 'tap'
import type { ResumeGap, ResumeGuardOptions, ResumeSequenceError } from '../lib/client/index.ts'
import { settle, setUpGuard, type GuardedConnection } from './helpers/scripted-fetch.ts'

const frame = (id: string | undefined, data?: unknown): string =>
  `${id === undefined ? '' : `id: ${id}\n`}data: ${data === undefined ? '' : JSON.stringify(data)}\n\n`

/** A message whose data tells it apart. */
const note = (id: string | undefined, n: number): string => frame(id, { method: 'n', n })

/** `exact` IDs of the standalone stream: seq one above the offset. */
const id = (offset: number, tag = 'aaaa'): string => `${offset + 1}-${offset}-1-${tag}`

/** What the application has seen. */
const seen = ({ reader }: GuardedConnection): number[] => reader.messages.map(data => JSON.parse(data).n)

/** A first connection that carries some frames and breaks; then the resume, with the cursor of a stock client. */
async function resumeAfter (frames: readonly string[], signal?: string, options?: Partial<ResumeGuardOptions>) {
  const all = setUpGuard(options)
  const first = await all.cut(frames)
  const second = await all.connect({ claimed: first.reader.lastEventId, signal })
  return { ...all, first, second }
}

t.test('live order', async t => {
  const table: Array<[what: string, ids: string[], kind: string | undefined]> = [
    ['exact, in order', [id(0), id(1), id(2)], undefined],
    ['exact, others in between', ['1-0-1-aaaa', '9-1-1-aaaa'], undefined],
    ['exact, one missing', [id(0), id(2)], 'gap'],
    ['exact, again', [id(0), id(1), id(1)], 'duplicate'],
    ['exact, an older one', [id(0), id(1), id(2), id(1)], 'reorder'],
    ['exact, a number issued again', [id(0), id(1), id(1, 'bbbb')], 'reorder'],
    ['exact, another stream', [id(0), '2-1-abcdefgh-aaaa'], 'reorder'],
    ['exact, then an ID of another kind', [id(0), '17'], 'reorder'],
    ['integers, rising with the holes of a shared counter', ['1', '2', '7'], undefined],
    ['integers, again', ['1', '2', '2'], 'duplicate'],
    ['integers, back', ['1', '2', '3', '2'], 'reorder'],
    ['opaque', ['a.1', 'b', 'c'], undefined],
    ['opaque, again', ['a', 'b', 'b'], 'duplicate'],
    ['opaque, an older one again', ['a', 'b', 'c', 'a'], 'duplicate'],
    ['opaque IDs that happen to be numbers', ['x', '77', '5'], undefined],
    ['integers too long to be exact', ['9007199254740993', '9007199254740992'], undefined]
  ]
  for (const [what, ids, kind] of table) {
    const { connect, violations } = setUpGuard()
    const connection = await connect()
    ids.forEach((id, n) => connection.body.send(note(id, n)))
    connection.body.send(note(undefined, 99))
    connection.body.end()
    const ended = await connection.reader.ended
    const good = kind === undefined ? ids.length : ids.length - 1
    t.strictSame(seen(connection), [...Array(good).keys(), ...kind === undefined ? [99] : []], what)
    t.equal(violations[0]?.kind, kind, what)
    t.equal(ended, kind === undefined ? 'end' : violations[0], what)
    if (kind !== undefined) t.match(violations, [{ last: ids[good - 1], received: ids[good], stream: '1' }], what)
  }
})

t.test('after a reconnect', async t => {
  const table: Array<[what: string, before: string[], after: string[], kind: string | undefined]> = [
    ['exact, the next', [id(0), id(1)], [id(2), id(3)], undefined],
    ['exact, one missing', [id(0), id(1)], [id(3)], 'gap'],
    ['exact, everything again', [id(0), id(1)], [id(0), id(1), id(2)], 'rebase'],
    ['exact, the cursor again', [id(0), id(1)], [id(1)], 'rebase'],
    ['exact, a number issued again', [id(0), id(1)], [id(1, 'bbbb')], 'rebase'],
    ['exact, another stream', [id(0), id(1)], ['3-2-abcdefgh-aaaa'], 'rebase'],
    ['exact, then an ID of another kind', [id(0), id(1)], ['2'], 'rebase'],
    ['integers, the next', ['1', '2'], ['3', '4'], undefined],
    ['integers, clamped', ['1', '2'], ['4', '5'], 'gap'],
    ['integers, restarted', ['1', '2'], ['1', '2', '3'], 'rebase'],
    ['integers, the cursor again', ['1', '2'], ['2', '3'], 'rebase'],
    ['opaque, new ones', ['a', 'b'], ['c'], undefined],
    ['opaque, everything again', ['a', 'b'], ['a', 'b', 'c'], 'duplicate'],
    ['opaque, the cursor again', ['a', 'b'], ['b', 'c'], 'duplicate']
  ]
  for (const signal of [undefined, 'resumed;cause=replay;replay=1']) {
    for (const [what, before, after, kind] of table) {
      const { second, violations } = await resumeAfter(before.map(note), signal)
      t.equal(second.cursor, before.at(-1))
      after.forEach((id, n) => second.body.send(note(id, n)))
      second.body.end()
      t.equal(await second.reader.ended, kind === undefined ? 'end' : violations[0], what)
      t.equal(violations[0]?.kind, kind, what)
      t.strictSame(seen(second), kind === undefined ? [...after.keys()] : [], what)
    }
  }
})

t.test('a re-priming frame counts neither as a repeat nor as an event', async t => {
  for (const before of [id(1), '2', 'b']) {
    const { second, violations } = await resumeAfter([note(before, 1)])
    second.body.send(frame(before === id(1) ? `${before}.2f` : before))
    second.body.send(note(before === id(1) ? id(3) : '4', 4))
    second.body.end()
    await second.reader.ended
    t.equal(violations[0]?.kind, before === 'b' ? undefined : 'gap', 'the next event is still owed')
  }
  const old = await resumeAfter([note(id(1), 1)], 'resumed;cause=caught-up')
  old.second.body.send(note(`${id(1)}.2f`, 1.5))
  old.second.body.send(note(id(2), 2))
  old.second.body.end()
  t.equal(await old.second.reader.ended, 'end', 'for clients that cannot read empty data it rides on a message')
  t.strictSame(seen(old.second), [1.5, 2])
})

t.test('the server\'s last frame repeats the cursor, under another suffix each time', async t => {
  const { second, connect, violations } = await resumeAfter([note(id(1), 1)], 'away')
  second.body.send(`id: ${id(1)}.aa\nretry: 2000\ndata:\n\n`)
  second.body.end()
  t.equal(await second.reader.ended, 'end')
  const third = await connect({ claimed: second.reader.lastEventId, signal: 'resumed;cause=replay' })
  t.equal(third.cursor, `${id(1)}.aa`)
  third.body.send(frame(`${id(1)}.bb`))
  third.body.send(note(id(2), 2))
  third.body.send(`id: ${id(2)}.cc\nretry: 2000\ndata:\n\n`)
  third.body.end()
  t.equal(await third.reader.ended, 'end')
  t.strictSame(seen(third), [2])
  t.strictSame(violations, [])
})

t.test('an announced gap: the application first, then the stream goes on where the server says', async t => {
  const table: Array<[what: string, signal: string, after: Array<[id: string | undefined, n: number]>]> = [
    ['evicted', 'gap;cause=evicted;missed=4;replay=2', [[undefined, 100], [id(6), 6], [id(7), 7]]],
    ['evicted, the last notice carries the newest ID', 'gap;cause=evicted;missed=4;replay=0', [[undefined, 100], [id(5), 101], [id(6), 6]]],
    ['diverged', 'gap;cause=diverged', [[undefined, 100], ['9-1-1-bbbb', 1], ['10-2-1-bbbb', 2]]],
    ['future', 'future;cause=ahead', [[id(0, 'bbbb'), 100], [id(1, 'bbbb'), 1]]]
  ]
  for (const [what, signal, after] of table) {
    const order: unknown[] = []
    let settled = (): void => {}
    const onGap = (gap: ResumeGap): Promise<void> => {
      order.push(gap)
      return new Promise(resolve => { settled = resolve })
    }
    const { second, violations } = await resumeAfter([note(id(0), 0), note(id(1), 1)], signal, { onGap })
    second.body.send(frame(`${id(1)}.2f`))
    for (const [id, n] of after) second.body.send(note(id, n))
    await settle()
    t.strictSame(order, [{ outcome: signal.slice(0, signal.indexOf(';')), signal, cursor: id(1), stream: '1' }], what)
    t.strictSame(seen(second), [], `${what}: nothing before the application is done`)
    settled()
    second.body.end()
    t.equal(await second.reader.ended, 'end', what)
    t.strictSame(seen(second), after.map(([, n]) => n), what)
    t.strictSame(violations, [], what)
  }
})

t.test('after an announced gap order is checked again', async t => {
  const { second, violations, gaps } = await resumeAfter([note(id(1), 1)], 'gap;cause=evicted;missed=3')
  second.body.send(frame(`${id(1)}.2f`))
  second.body.send(note(id(5), 5))
  second.body.send(note(id(7), 7))
  t.equal(await second.reader.ended, violations[0])
  t.match(violations, [{ kind: 'gap', last: id(5), received: id(7) }])
  t.equal(gaps.length, 1)
  t.strictSame(seen(second), [5])
})

t.test('a gap that the application cannot handle ends the stream, and comes again', async t => {
  const failure = new Error('cannot list')
  let calls = 0
  const onGap = (): void => {
    if (++calls === 1) throw failure
  }
  const { second, connect, violations } = await resumeAfter([note(id(1), 1)], 'gap;cause=evicted;missed=3', { onGap })
  second.body.send(note(id(5), 5))
  t.equal(await second.reader.ended, failure)
  t.strictSame(seen(second), [])
  await settle()
  t.ok(second.body.cancelled)
  const third = await connect({ signal: 'gap;cause=evicted;missed=3' })
  t.equal(third.cursor, id(1))
  third.body.send(note(id(5), 5))
  third.body.end()
  t.equal(await third.reader.ended, 'end')
  t.strictSame(seen(third), [5])
  t.strictSame([calls, violations.length], [2, 0])
})

t.test('a first connection can find a gap too', async t => {
  const { connect, gaps, violations } = setUpGuard()
  const connection = await connect({ signal: 'gap;cause=evicted;missed=3;replay=1' })
  connection.body.send(frame(`${id(1)}.2f`) + note(undefined, 100) + note(id(5), 5) + note(id(6), 6))
  connection.body.end()
  t.equal(await connection.reader.ended, 'end')
  t.match(gaps, [{ outcome: 'gap', cursor: '', stream: '1' }])
  t.strictSame(seen(connection), [100, 5, 6])
  t.strictSame(violations, [])
})

t.test('a gap that is announced without a stream reaches the application too', async t => {
  for (const [status, signal] of [[204, 'gap;cause=expired'], [400, 'future;cause=ahead']] as const) {
    const { ask, gaps, second } = await resumeAfter([note(id(1), 1)], 'resumed;cause=caught-up')
    second.body.end()
    await second.reader.ended
    const { request, response } = ask(id(4))
    ;(await request).respond({ 'mcp-resume': signal, 'content-type': 'application/json' }, status)
    t.equal((await response).status, status)
    t.match(gaps, [{ signal, cursor: id(4), stream: '1' }])
  }
})

t.test('a violation: told, awaited, for good', async t => {
  let settled = (): void => {}
  const onViolation = (): Promise<void> => new Promise(resolve => { settled = resolve })
  const { second, ask, server } = await resumeAfter([note(id(1), 1)], undefined, { onViolation })
  second.body.send(note(id(3), 3) + note(id(4), 4))
  await settle()
  t.equal(second.reader.outcome, undefined, 'the stream waits for the application')
  settled()
  const error = await second.reader.ended as ResumeSequenceError
  t.match(error, { name: 'ResumeSequenceError', code: 'MCP_RESUME_ERR_SEQUENCE', kind: 'gap', last: id(1), received: id(3), stream: '1' })
  t.strictSame(seen(second), [])
  await settle()
  t.ok(second.body.cancelled)
  for (const cursor of [id(1), undefined]) await t.rejects(ask(cursor).response, error)
  t.equal(server.waiting, 0, 'no request was made')
})
