// Which stream a request continues, from which cursor, and what the guard keeps of it; and what it takes for silence.
import t from 'tap'
import { createResumeGuard, type ResumeGuardOptions, type ResumeSequenceError } from '../lib/client/index.ts'
import { connectGuarded, scriptFetch, settle, type ConnectOptions, type GuardedConnection } from './helpers/scripted-fetch.ts'
import { until } from './helpers/wait.ts'

const message = (id: string | undefined, method = 'n'): string => `${id === undefined ? '' : `id: ${id}\n`}data: {"method":"${method}"}\n\n`
const response = (id: string): string => `id: ${id}\ndata: {"id":1,"result":{"n":1}}\n\n`
const failure = (id: string): string => `id: ${id}\ndata: {"id":1,"error":{"code":1,"message":"no such method"}}\n\n`

/** `exact` IDs: seq one above the offset. */
const id = (offset: number, stream = '1'): string => `${offset + 1}-${offset}-${stream}-aaaa`

function setUp (options: Partial<ResumeGuardOptions> = {}) {
  const server = scriptFetch()
  const violations: ResumeSequenceError[] = []
  const guard = createResumeGuard({ onGap () {}, onViolation (error) { violations.push(error) }, fetch: server.fetch, ...options })
  const connect = (options?: ConnectOptions): Promise<GuardedConnection> => connectGuarded(guard.fetch, server, options)
  /** A whole connection: its frames, and then a reset. */
  const cut = async (frames: readonly string[], options?: ConnectOptions): Promise<GuardedConnection> => {
    const connection = await connect(options)
    for (const frame of frames) connection.body.send(frame)
    connection.body.fail(new Error('reset'))
    await connection.reader.ended
    return connection
  }
  return { server, guard, violations, connect, cut }
}

t.test('a listener that comes back without a cursor gets its own', async t => {
  for (const [a, b] of [[id(3), id(4)], ['3', '4'], ['c', 'd']] as const) {
    const { cut, violations } = setUp()
    t.equal((await cut([message(a)])).cursor, null)
    t.equal((await cut([], { claimed: a })).cursor, a)
    t.equal((await cut([message(b)])).cursor, a, 'the second drop came before any ID')
    t.equal((await cut([])).cursor, b, 'what came since counts')
    t.strictSame(violations, [])
  }
})

t.test('a request whose client forgot its cursor comes back before the listener', async t => {
  for (const ours of [true, false]) {
    const at = (offset: number, stream: string): string => ours ? id(offset, stream) : `${stream}${offset}`
    const { connect, cut } = setUp()
    const listener = await connect()
    listener.body.send(message(at(7, '1')))
    await cut([message(at(1, 'abcdefgh'))], { method: 'POST' })
    await cut([], { claimed: at(1, 'abcdefgh') })
    t.equal((await cut([])).cursor, at(1, 'abcdefgh'))
    await cut([message(at(5, 'ijklmnop'))], { method: 'POST' })
    await cut([], { claimed: at(5, 'ijklmnop') })
    listener.body.fail(new Error('reset'))
    await listener.reader.ended
    const back = { signal: 'resumed;cause=caught-up' }
    t.strictSame([(await connect(back)).cursor, (await connect(back)).cursor, (await connect(back)).cursor],
      [at(1, 'abcdefgh'), at(5, 'ijklmnop'), at(7, '1')], 'first lost, first back; then the listener')
  }
})

t.test('a fetch that fails changes nothing', async t => {
  const { guard, server, cut } = setUp()
  await cut([message(id(1, 'abcdefgh'))], { method: 'POST' })
  await cut([], { claimed: id(1, 'abcdefgh') })
  for (const answer of ['reset', 503]) {
    const pending = guard.fetch('http://127.0.0.1/mcp', { headers: { accept: 'text/event-stream', 'mcp-session-id': 's' } })
    const request = await server.next()
    t.equal(request.cursor, id(1, 'abcdefgh'))
    if (typeof answer === 'number') request.respond({ 'content-type': 'text/plain' }, answer)
    else request.fail(new Error(answer))
    await pending.catch(() => {})
  }
  t.equal((await cut([])).cursor, id(1, 'abcdefgh'))
})

t.test('a forgotten request that is finished does not keep the listener from coming back', async t => {
  const { guard, server, cut } = setUp()
  await cut([message(id(7))])
  await cut([], { claimed: id(7) })
  await cut([message(id(1, 'abcdefgh'))], { method: 'POST' })
  await cut([], { claimed: id(1, 'abcdefgh') })
  // The first to be lost is the listener; it gets an ID and is no longer lost.
  await cut([message(id(8))])
  const pending = guard.fetch('http://127.0.0.1/mcp', { headers: { accept: 'text/event-stream', 'mcp-session-id': 's' } })
  const request = await server.next()
  t.equal(request.cursor, id(1, 'abcdefgh'))
  request.respond({}, 204)
  await pending
  t.equal((await cut([])).cursor, id(8))
})

t.test('a cursor that is stale, or one that the client wants', async t => {
  for (const ours of [true, false]) {
    const at = (offset: number): string => ours ? id(offset) : String(offset)
    const { cut, violations } = setUp()
    await cut([message(at(1)), message(at(2)), message(at(3))])
    await cut([message(at(4))], { claimed: at(3) })
    t.equal((await cut([message(at(5))], { claimed: at(3) })).cursor, at(4), 'sent before: stale')
    const back = await cut([message(at(2)), message(at(3))], { claimed: at(1) })
    t.equal(back.cursor, at(1), 'another one: the client\'s wish')
    t.equal(back.reader.messages.length, 2, 'and no violation')
    t.strictSame(violations, [])
  }
})

t.test('a cursor from an earlier process is taken over', async t => {
  const { connect, violations } = setUp()
  const connection = await connect({ claimed: id(4, 'abcdefgh') })
  connection.body.send(message(id(6, 'abcdefgh')))
  await connection.reader.ended
  t.match(violations, [{ kind: 'gap', last: id(4, 'abcdefgh'), stream: 'abcdefgh' }])
})

t.test('sessions do not mix', async t => {
  const { cut } = setUp()
  await cut([message(id(4))], { session: 'a' })
  t.equal((await cut([], { session: 'b' })).cursor, null)
  t.equal((await cut([], { session: 'a' })).cursor, id(4))
})

t.test('streams run side by side, each in its own order', async t => {
  const { connect, guard, violations } = setUp()
  const streams = ['1', 'abcdefgh', 'ijklmnop', 'qrstuvwx']
  const connections = await Promise.all(streams.map(name => connect({ method: name === '1' ? 'GET' : 'POST' })))
  for (let offset = 0; offset < 5; offset++) {
    connections.forEach(({ body }, i) => body.send(message(id(offset, streams[i]!))))
  }
  await until(() => connections.every(({ reader }) => reader.messages.length === 5), 'all have all')
  connections[1]!.body.send(message(id(6, 'abcdefgh')))
  t.equal(await connections[1]!.reader.ended, violations[0])
  connections[2]!.body.send(message(id(5, 'ijklmnop')))
  await until(() => connections[2]!.reader.messages.length === 6, 'the others go on')
  t.strictSame(streams.map(name => guard.level(name)), ['exact', 'exact', 'exact', 'exact'])
})

t.test('the level says what can be checked', async t => {
  for (const [id, level] of [['1-0-1-aaaa', 'exact'], ['17', 'integer'], ['0', 'integer'], ['1700000000000_x', 'opaque'], [undefined, 'none']] as const) {
    const { guard, connect } = setUp()
    t.equal(guard.level(), 'none')
    const { body, reader } = await connect()
    body.send(message(id))
    body.end()
    await reader.ended
    t.equal(guard.level(), level)
  }
  const { guard, connect } = setUp()
  const { body } = await connect({ method: 'POST' })
  body.send(message('5'))
  await settle()
  t.equal(guard.level('request-1'), 'integer', 'a stream without a name gets one')
  t.equal(guard.level(), 'none')
})

t.test('finished and abandoned streams are forgotten', async t => {
  const { guard, cut } = setUp()
  await cut([message(id(0, 'abcdefgh')), response(id(1, 'abcdefgh'))], { method: 'POST' })
  t.equal(guard.level('abcdefgh'), 'exact', 'kept while its client may still ask')
  await cut([response(id(0, 'ijklmnop'))], { method: 'POST' })
  t.equal(guard.level('abcdefgh'), 'none')
  await cut([message('7')])
  for (let i = 1; i <= 300; i++) await cut([message('5')], { method: 'POST' })
  const known = Array.from({ length: 302 }, (_, i) => guard.level(`request-${i + 1}`)).filter(level => level !== 'none')
  t.ok(known.length <= 257, `${known.length} of 300`)
})

t.test('of opaque IDs the last thousand are known', async t => {
  const { connect, violations } = setUp()
  const { body, reader } = await connect()
  for (let i = 0; i <= 1000; i++) body.send(message(`e${i}`))
  body.send(message('e0'))
  body.send(message('e2'))
  await reader.ended
  t.equal(reader.messages.length, 1002)
  t.match(violations, [{ kind: 'duplicate', last: 'e0', received: 'e2' }])
})

t.test('silence: nothing at all', async t => {
  const { cut, connect, violations, guard } = setUp({ silentMs: 30 })
  await cut([message('3')])
  const { body, reader } = await connect({ claimed: '3' })
  body.send(': open\n\n')
  const error = await reader.ended
  t.match(violations, [{ kind: 'silent', last: '3', received: undefined, stream: '1' }])
  t.equal(error, violations[0])
  await settle()
  t.ok(body.cancelled)
  await t.rejects(connect(), violations[0]!)
  t.equal(guard.level(), 'integer')
})

t.test('silence: an end without a word, or a message that tells nothing', async t => {
  for (const [frame, kind] of [[undefined, 'silent'], [message(undefined), 'silent'], ['event: ping\ndata: {}\n\n', 'silent']] as const) {
    const { cut, connect, violations } = setUp()
    await cut([message('3')])
    const { body, reader } = await connect({ claimed: '3' })
    if (frame !== undefined) body.send(frame)
    body.end()
    t.equal(await reader.ended, violations[0])
    t.match(violations, [{ kind }])
    t.strictSame(reader.messages, frame === undefined || frame.startsWith('data') ? [] : ['{}'])
  }
})

t.test('no silence: a signal, the cursor again, the next event, a break, or a server that is known to be silent', async t => {
  const table: Array<[what: string, signal: string | undefined, frame: string | undefined, options?: Partial<ResumeGuardOptions>]> = [
    ['a signal', 'resumed;cause=caught-up', undefined],
    ['away', 'away', undefined],
    ['the cursor again', undefined, 'id: 3\ndata:\n\n'],
    ['the next event', undefined, message('4')],
    ['a server that is known', undefined, undefined, { silentMs: 0 }],
    ['an announced gap', 'gap;cause=evicted;missed=2', undefined]
  ]
  for (const [what, signal, frame, options] of table) {
    const { cut, connect, violations } = setUp({ silentMs: 20, ...options })
    await cut([message('3')])
    const { body, reader } = await connect({ claimed: '3', signal })
    if (frame !== undefined) body.send(frame)
    await settle()
    // The time is up for every connection that was opened before this one.
    const witness = setUp({ silentMs: 20 })
    await witness.cut([message('3')])
    await (await witness.connect({ claimed: '3' })).reader.ended
    body.end()
    t.equal(await reader.ended, 'end', what)
    t.strictSame(violations, [], what)
  }
  const { cut, violations } = setUp()
  await cut([message('3')])
  await cut([], { claimed: '3' })
  t.strictSame(violations, [], 'a break before anything came')
})

t.test('no silence: the stream is finished', async t => {
  for (const last of [response('4'), failure('4')]) {
    const { cut, connect, violations } = setUp()
    await cut([message('3'), last], { method: 'POST' })
    const { body, reader } = await connect({ claimed: '4' })
    body.end()
    t.equal(await reader.ended, 'end')
    t.strictSame(violations, [])
  }
})

t.test('a violated stream whose client forgot its cursor does not become a second listener', async t => {
  const { cut, connect, violations, guard } = setUp()
  const listener = await connect()
  listener.body.send(message('50'))
  await cut([message('3')], { method: 'POST' })
  const { body, reader } = await connect({ claimed: '3' })
  body.send(message('1'))
  await reader.ended
  t.match(violations, [{ kind: 'rebase', last: '3', received: '1', stream: 'request-1' }])
  await t.rejects(connect(), violations[0]!, 'the listener lives, so this is not the listener')
  listener.body.fail(new Error('reset'))
  await listener.reader.ended
  t.equal((await cut([])).cursor, '50', 'the listener itself comes back')
  t.equal(guard.level(), 'integer')
})
