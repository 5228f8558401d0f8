// Which stream a request continues, from which cursor, and what the guard keeps of it.
import t from 'tap'
import { settle, setUpGuard } from './helpers/scripted-fetch.ts'
import { until } from './helpers/wait.ts'

const message = (id: string | undefined, method = 'n'): string => `${id === undefined ? '' : `id: ${id}\n`}data: {"method":"${method}"}\n\n`
const response = (id: string): string => `id: ${id}\ndata: {"id":1,"result":{"n":1}}\n\n`

/** `exact` IDs: seq one above the offset. */
const id = (offset: number, stream = '1'): string => `${offset + 1}-${offset}-${stream}-aaaa`

t.test('a listener that comes back without a cursor gets its own', async t => {
  for (const [a, b] of [[id(3), id(4)], ['3', '4'], ['c', 'd']] as const) {
    const { cut, violations } = setUpGuard()
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
    const { connect, cut } = setUpGuard()
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
  const { ask, cut } = setUpGuard()
  const fail = async (answer: string | number, claimed?: string): Promise<void> => {
    const { request, response } = ask(claimed)
    t.equal((await request).cursor, id(1, 'abcdefgh'))
    if (typeof answer === 'number') (await request).respond({ 'content-type': 'text/plain' }, answer)
    else (await request).fail(new Error(answer))
    await response.catch(() => {})
  }
  await cut([message(id(7))])
  await cut([message(id(1, 'abcdefgh'))], { method: 'POST' })
  for (const answer of ['reset', 503]) await fail(answer, id(1, 'abcdefgh'))
  t.equal((await cut([message(id(8))])).cursor, id(7), 'whose client still has its cursor is not taken for the listener')
  await cut([], { claimed: id(1, 'abcdefgh') })
  for (const answer of ['reset', 503]) await fail(answer)
  t.equal((await cut([message(id(2, 'abcdefgh'))])).cursor, id(1, 'abcdefgh'))
  t.equal((await cut([])).cursor, id(8), 'and no more once it has an ID again')
})

t.test('a forgotten request that is finished does not keep the listener from coming back', async t => {
  const { ask, cut } = setUpGuard()
  await cut([message(id(7))])
  await cut([], { claimed: id(7) })
  await cut([message(id(1, 'abcdefgh'))], { method: 'POST' })
  await cut([], { claimed: id(1, 'abcdefgh') })
  // The first to be lost is the listener; it gets an ID and is no longer lost.
  await cut([message(id(8))])
  const { request, response } = ask()
  t.equal((await request).cursor, id(1, 'abcdefgh'))
  ;(await request).respond({}, 204)
  await response
  t.equal((await cut([])).cursor, id(8))
})

t.test('a cursor that is stale, or one that the client wants', async t => {
  for (const ours of [true, false]) {
    const at = (offset: number): string => ours ? id(offset) : String(offset)
    const { cut, violations } = setUpGuard()
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
  const { connect, violations } = setUpGuard()
  const connection = await connect({ claimed: id(4, 'abcdefgh') })
  connection.body.send(message(id(6, 'abcdefgh')))
  await connection.reader.ended
  t.match(violations, [{ kind: 'gap', last: id(4, 'abcdefgh'), stream: 'abcdefgh' }])
})

t.test('sessions do not mix', async t => {
  const { cut } = setUpGuard()
  await cut([message(id(4))], { session: 'a' })
  t.equal((await cut([], { session: 'b' })).cursor, null)
  t.equal((await cut([], { session: 'a' })).cursor, id(4))
})

t.test('streams run side by side, each in its own order', async t => {
  const { connect, guard, violations } = setUpGuard()
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
    const { guard, connect } = setUpGuard()
    t.equal(guard.level(), 'none')
    const { body, reader } = await connect()
    body.send(message(id))
    body.end()
    await reader.ended
    t.equal(guard.level(), level)
  }
  const { guard, connect } = setUpGuard()
  const { body } = await connect({ method: 'POST' })
  body.send(message('5'))
  await settle()
  t.equal(guard.level('request-1'), 'integer', 'a stream without a name gets one')
  t.equal(guard.level(), 'none')
})

t.test('finished and abandoned streams are forgotten', async t => {
  const { guard, cut } = setUpGuard()
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
  const { connect, violations } = setUpGuard()
  const { body, reader } = await connect()
  for (let i = 0; i <= 1000; i++) body.send(message(`e${i}`))
  body.send(message('e0'))
  body.send(message('e2'))
  await reader.ended
  t.equal(reader.messages.length, 1002)
  t.match(violations, [{ kind: 'duplicate', last: 'e0', received: 'e2' }])
})

t.test('a violated stream whose client forgot its cursor does not become a second listener', async t => {
  for (const listenerId of ['50', undefined]) {
    const { cut, connect, violations, guard } = setUpGuard()
    const listener = await connect()
    listener.body.send(message(listenerId))
    await cut([message('3')], { method: 'POST' })
    const { body, reader } = await connect({ claimed: '3' })
    body.send(message('1'))
    await reader.ended
    t.match(violations, [{ kind: 'rebase', last: '3', received: '1', stream: 'request-1' }])
    await t.rejects(connect(), violations[0]!, 'the listener lives, so this is not the listener')
    listener.body.fail(new Error('reset'))
    await listener.reader.ended
    t.equal((await cut([])).cursor, listenerId ?? null, 'the listener itself comes back')
    t.equal(guard.level(), listenerId === undefined ? 'none' : 'integer')
  }
})

t.test('a connection that is given up says nothing about the next one', async t => {
  const { ask, cut, connect, violations } = setUpGuard()
  await cut([message('3')])
  const { request, response } = ask('3')
  ;(await request).respond()
  const reader = (await response).body!.getReader()
  const pending = reader.read()
  await settle()
  const gone = reader.cancel()
  const next = connect({ claimed: '3' })
  await Promise.all([gone, pending])
  const second = await next
  second.body.send(message('4'))
  await until(() => second.reader.messages.length === 1, 'the second goes on')
  t.equal((await cut([])).cursor, null, 'and is still the one that carries the stream')
  t.strictSame(violations, [], 'that the first one ended is no silence')
  second.body.end()
  t.equal(await second.reader.ended, 'end')
})

t.test('of two listeners on one session the one that lasted counts', async t => {
  const { connect, cut } = setUpGuard()
  const first = await connect()
  const second = await connect()
  first.body.send(message(id(3)))
  second.body.send(message(id(5)))
  for (const { body, reader } of [first, second]) {
    body.fail(new Error('reset'))
    await reader.ended
  }
  t.equal((await cut([])).cursor, id(5))
})
