// Nobody reaches another's session, and no client text reaches Redis, a header or an object's prototype.
import { once } from 'node:events'
import { connect } from 'node:net'
import { text as readText } from 'node:stream/consumers'
import t from 'tap'
import { backends, startApp } from './helpers/plugin-app.ts'
import type { AppOptions } from './helpers/plugin-app.ts'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { connectRedis, keyPrefix, keysUnder, redisUrl } from './helpers/redis.ts'
import { startReplica } from './helpers/replica.ts'
import { del, get, initialize, post } from './helpers/sse-client.ts'
import type { Answer } from './helpers/sse-client.ts'
import { until } from './helpers/wait.ts'

const principal: AppOptions['principal'] = ({ headers }) => headers['x-user'] as string | undefined

/** One request, byte by byte: what http.request refuses to send. */
async function send (url: string, lines: readonly string[]): Promise<{ status: number, body: string }> {
  const { hostname, port, pathname } = new URL(url)
  const socket = connect({ host: hostname, port: Number(port) })
  await once(socket, 'connect')
  socket.write(Buffer.from([`GET ${pathname} HTTP/1.1`, `host: ${hostname}:${port}`, 'connection: close', 'accept: text/event-stream', ...lines, '', ''].join('\r\n'), 'latin1'))
  const answer = await readText(socket)
  return { status: Number(/^HTTP\/1.1 (\d+)/.exec(answer)?.[1]), body: answer.slice(answer.indexOf('\r\n\r\n')) }
}

/** Everything of an answer that could tell two cases apart. */
async function fingerprint (answer: Answer, cursor = 'none'): Promise<string> {
  const { date: _date, ...headers } = answer.headers
  let body = answer.body
  if (answer.isStream) {
    // Up to the end of the announcement; what follows is the listener's own business.
    await answer.stream.until(({ message }) => message?.method === 'notifications/resources/list_changed')
    answer.cut()
    await answer.stream.ended
    const raw = answer.stream.raw.toString()
    body = raw.slice(0, raw.indexOf('\n\n', raw.indexOf('resources/list_changed')))
  }
  return JSON.stringify([answer.status, headers, body]).replaceAll(cursor, 'CURSOR').replace(/CURSOR\.[0-9a-z]{2,4}/g, 'CURSOR.xx')
}

for (const backend of backends) {
  t.test(backend, async t => {
    await t.test('B62: another session\'s event id is worth as much as a random one', async t => {
      const prefix = keyPrefix(t)
      const { url, app } = await startApp(t, backend, { principal, ...(backend === 'redis' && { keyPrefix: prefix }) })
      const first = await initialize(url, { headers: { 'x-user': 'one' } })
      const second = await initialize(url, { headers: { 'x-user': 'two' } })
      await app.mcp.notify(first.sessionId, { method: 'notifications/message', params: { level: 'info', data: 'SECRET' } })
      await app.mcp.notify(first.sessionId, { method: 'notifications/message', params: { level: 'info', data: 'SECRET' } })
      const call = await first.call('echo', { text: 'SECRET' })
      const [opening, result] = await call.stream.rest()
      const listener = await first.listen()
      const announced = await listener.stream.until(({ message }) => message?.params?.data === 'SECRET')
      listener.cut()
      await listener.stream.ended
      // The second session has as many events, so that no number of the first is ahead of it.
      for (let i = 0; i < 20; i++) await app.mcp.notify(second.sessionId, { method: 'notifications/test' })
      if (backend === 'memory') await until(() => app.mcp.load.connections === 0, 'the listener is gone')
      const keys = async () => backend === 'memory'
        ? []
        : await Promise.all((await keysUnder(redis!, `${prefix}{${first.sessionId}}`)).map(async key => (await redis!.dumpBuffer(key)).toString('hex')))
      const redis = backend === 'redis' ? await connectRedis(t) : undefined
      const hash = `${prefix}{${first.sessionId}}`
      if (redis !== undefined) await until(async () => / - - \d+ /.test((await redis.hget(hash, 's:1'))!), 'the listener is detached')
      const before = await keys()

      for (const id of [opening!.id!, result!.id!, announced.at(-1)!.id!]) {
        const [seq, offset, stream, tag] = id.split('-') as [string, string, string, string]
        const forms = [
          id, `${id}.ab`, `${Number(seq) + 1}-${offset}-${stream}-${tag}`, `${Number(seq) - 1}-0-${stream}-${tag}`,
          `${seq}-${Number(offset) + 1}-${stream}-${tag}`, `${seq}-${offset}-1-${tag}`, `900-${offset}-${stream}-${tag}`,
          `${first.sessionId}-${id}`, `${stream}-${seq}`, `${seq}-${offset}-${stream}`
        ]
        for (const form of forms) {
          const random = form.replace(tag, 'q9q9').replace(/[0-9a-z]{8}(?=-q9q9)/, 'zzzzzzzz')
          const [theirs, nobodys] = [form, random].map(cursor => async () => await fingerprint(await second.resume(cursor), cursor.replace('.ab', '')))
          const answer = await theirs!()
          t.equal(answer, await nobodys!(), form)
          t.notMatch(answer, /SECRET/)
        }
      }
      t.strictSame(await keys(), before, 'nothing was written into the first session')
      t.match((await first.resume(opening!.id!)).headers['mcp-resume'], /^resumed;/, 'its own cursor is good')
    })

    await t.test('another session cannot answer for the one that was asked', async t => {
      const { url, app } = await startApp(t, backend, { principal })
      const elicitation = { elicitation: { form: {} } }
      const first = await initialize(url, { headers: { 'x-user': 'one' }, capabilities: elicitation })
      const second = await initialize(url, { headers: { 'x-user': 'two' }, capabilities: elicitation })
      const call = await first.call('ask')
      const { message } = (await call.stream.until(({ message }) => message?.method === 'elicitation/create')).at(-1)!
      // A well-formed answer gets its 202 anywhere: refusing one ends some clients.
      t.match(await second.respond(message.id, { action: 'accept', content: { answer: 'stolen' } }), { status: 202, body: '' })
      t.equal(app.mcp.counters.unclaimedAnswers, 1)
      await first.respond(message.id, { action: 'accept', content: { answer: 'own' } })
      t.match(await call.response(), { result: { content: [{ text: 'own' }] } })
    })

    await t.test('a body that would pollute prototypes is refused', async t => {
      const { url } = await startApp(t, backend)
      const session = await initialize(url)
      for (const text of [
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":"x"},"__proto__":{"polluted":1}}}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","\\u005f_proto__":{"polluted":1}}'
      ]) {
        const answer = await post(url, text, session.headers)
        t.equal(answer.status, 400)
        t.match(answer.json(), { error: { code: -32700 }, id: null })
      }
      const constructor = '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"constructor":{"prototype":{"polluted":1}}}}'
      t.equal((await post(url, constructor, session.headers)).status, 200, 'harmless: nobody merges it')
      t.equal(({} as { polluted?: number }).polluted, undefined)
    })

    await t.test('a page of another origin, or of a name rebound to this machine, is refused', async t => {
      const plain = await startApp(t, backend)
      const host = new URL(plain.url).host
      const session = await initialize(plain.url)
      for (const [headers, status] of [
        [{ origin: 'https://evil.example' }, 403],
        [{ origin: 'null' }, 403],
        [{ origin: `http://${host}` }, 200],
        [{ origin: 'http://evil.example', host: 'evil.example' }, 403]
      ] as const) {
        for (const answer of [await session.request('ping', {}, { headers }), await session.listen(undefined, headers)]) {
          t.equal(answer.status, status, JSON.stringify(headers))
          if (status === 403) t.match(answer.json(), { error: { code: -31005 } })
          answer.cut()
        }
      }
      const strict = await startApp(t, backend, { allowedHosts: ['mcp.example'], allowedOrigins: ['https://app.example'] })
      t.equal((await post(strict.url, '{}')).status, 403, 'the host is not one of ours')
      const inside = await initialize(strict.url, { headers: { host: 'mcp.example:8080', origin: 'https://app.example' } })
      t.equal((await inside.request('ping')).status, 200)
    })
  })
}

t.test('B63: another user\'s session does not exist, on any replica', async t => {
  const env = { REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t) }
  const [a, b] = await Promise.all([startReplica(t, env), startReplica(t, env)])
  const mine = await initialize(a.url, { headers: { 'x-user': 'one' } })
  const { stream } = await mine.listen()
  const { id: cursor } = await stream.next()
  const unknown = 'A'.repeat(32)
  for (const user of [{ 'x-user': 'two' }, {}]) {
    for (const url of [a.url, b.url]) {
      const answers = async (sessionId: string): Promise<Answer[]> => {
        const headers = { 'mcp-session-id': sessionId, 'mcp-protocol-version': '2025-11-25', ...user }
        return [
          await post(url, { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'hit', arguments: { key: 'k' } } }, headers),
          await post(url, { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 1 } }, headers),
          await post(url, [{ jsonrpc: '2.0', id: 1, method: 'ping' }], headers),
          await get(url, headers),
          await get(url, { ...headers, 'last-event-id': cursor! }),
          await del(url, headers)
        ]
      }
      const [theirs, nobodys] = [await answers(mine.sessionId), await answers(unknown)]
      for (const [i, answer] of theirs.entries()) {
        t.equal(answer.status, 404)
        t.equal(await fingerprint(answer), await fingerprint(nobodys[i]!), 'like the answer for an unknown session')
      }
    }
  }
  // The principal is in Redis, not in the memory of the replica that opened the session.
  await mine.at(b.url).call('emit', { n: 1, ms: 0 })
  await stream.until(({ message }) => message?.params?.data?.i === 1)
  t.equal(stream.isOpen, true, 'the listener was left alone')
  t.match(await (await mine.at(b.url).call('hit', { key: 'k' })).response(), { result: { content: [{ text: '1' }] } }, 'nothing was executed')
})

t.test('B68: headers are judged before any look-up', async t => {
  const proxy = await startFaultProxy(t, redisUrl())
  const { url } = await startApp(t, 'redis', { redisUrl: proxy.url })
  // Commands about a session carry its hash tag; what a replica does for itself does not.
  const asked: string[] = []
  proxy.loseReplyTo(({ name, args }) => {
    if (args.some(arg => arg.includes('{'))) asked.push(name)
    return false
  })
  const { sessionId } = await initialize(url)
  const session = `mcp-session-id: ${sessionId}`
  t.ok(asked.splice(0).length > 0, 'commands are seen')

  const odd = ['x'.repeat(129), 'x'.repeat(8000), 'a\tb', 'a%00', '*', '?', '[a]', '{a}', 'a:b', 'a b', 'a\u00ff', '../x', 'a\\']
  const refused: Array<[lines: string[], what: string]> = [
    ...odd.map((text): [string[], string] => [[`mcp-session-id: ${text}`], `session ${text.slice(0, 20)}`]),
    ...[...odd, 'x', '1', '1-0', '0-0-1-abcd', '1-1-1-abcd', '01-0-1-abcd', `${2 ** 53}-0-1-abcd`, '1-0-1-abcd.', '1-0-1-abcd.a', '-1', '1-0-1-ABCD']
      .map((text): [string[], string] => [[session, `last-event-id: ${text}`], `cursor ${text.slice(0, 20)}`]),
    [[session, session], 'session sent twice'],
    [[session, 'last-event-id: 1-0-1-abcd', 'last-event-id: 1-0-1-abcd'], 'cursor sent twice'],
    [[session, 'mcp-protocol-version: 2025-11-25', 'mcp-protocol-version: 2025-11-25'], 'version sent twice'],
    [['mcp-session-id: '], 'empty session'],
    [[session, 'last-event-id: a\0b'], 'NUL'],
    [[session, `last-event-id: ${'x'.repeat(64_000)}`], '64 kB']
  ]
  for (const [lines, what] of refused) {
    const { status, body } = await send(url, lines)
    // Node's own parser refuses NUL with 400 and too long a head with 431.
    t.equal(status, what === '64 kB' ? 431 : 400, what)
    if (!/NUL|64 kB/.test(what)) t.match(JSON.parse(/\{.*\}/s.exec(body)![0]), { jsonrpc: '2.0', error: { code: -31005 }, id: null })
    if (/twice/.test(what)) t.match(body, /sent more than once/)
  }
  t.equal((await send(url, ['mcp-session-id: x'])).status, 404, 'one byte is a session that nobody has')
  t.strictSame(asked, [], 'no Redis command')

  const empty = await get(url, { 'mcp-session-id': sessionId, 'last-event-id': '' })
  t.match(empty.headers['mcp-resume'], /^fresh;/, 'an empty cursor is no cursor')
  const { id } = await empty.stream.next()
  t.ok(sessionId.length <= 32 && id!.length <= 64, 'our own ids are short')
})
