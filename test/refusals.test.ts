// What the endpoint refuses, and in which words: clients decide by status, code and id whether to go on.
import { request } from 'node:http'
import type { OutgoingHttpHeaders } from 'node:http'
import t from 'tap'
import { backends, startApp, toolServer } from './helpers/plugin-app.ts'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { keyPrefix, redisUrl } from './helpers/redis.ts'
import { startReplica } from './helpers/replica.ts'
import { del, get, initialize, post } from './helpers/sse-client.ts'
import type { Answer, Session } from './helpers/sse-client.ts'
import { until, within } from './helpers/wait.ts'

const NOT_FOUND = '{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}'
const WELL_FORMED = '0123456789abcdefghijklmnopqrstuv'

/** The same four requests of a session: a call, a listener, a resume, a DELETE. */
async function all (session: Session): Promise<Answer[]> {
  return [
    await session.call('echo', { text: 'x' }),
    await session.listen(),
    await session.resume('2-1-1-abcd'),
    await session.del()
  ]
}

function withId (session: Session, sessionId: string | undefined): Session {
  const { 'mcp-session-id': _own, ...headers } = session.headers
  const given = { ...headers, ...(sessionId !== undefined && { 'mcp-session-id': sessionId }) }
  return {
    ...session,
    headers: given,
    call: async (name, args) => await post(session.url, rpc(1, name, args), given) as never,
    listen: () => get(session.url, given),
    resume: cursor => get(session.url, { ...given, 'last-event-id': cursor }),
    del: () => del(session.url, given)
  }
}

function rpc (id: unknown, name: string, args: unknown = {}): object {
  return { jsonrpc: '2.0', id, method: 'tools/call', params: { name, arguments: args } }
}

function statusOf (method: string, url: string, headers: OutgoingHttpHeaders): Promise<number | undefined> {
  const status = new Promise<number | undefined>((resolve, reject) => {
    request(url, { method, headers: { ...headers, accept: 'text/event-stream' }, agent: false }, answer => {
      answer.resume()
      resolve(answer.statusCode)
    }).on('error', reject).end()
  })
  return within(status, `the answer to ${method}`)
}

for (const backend of backends) {
  t.test(backend, async t => {
    await t.test('a refused request gets its id back, with its JSON type', async t => {
      const { url } = await startApp(t, backend)
      const { headers } = await initialize(url)
      const refused: Array<[status: number, code: number, more: Record<string, string | undefined>]> = [
        [406, -31005, { accept: 'text/html' }],
        [400, -31005, { 'mcp-protocol-version': '2024-01-01' }],
        [400, -31005, { 'mcp-session-id': undefined }],
        [400, -31005, { 'mcp-session-id': '%2e' }],
        [400, -32601, { 'mcp-protocol-version': '2026-07-28' }]
      ]
      for (const [status, code, more] of refused) {
        for (const id of [7, '7', 'a b', 0, -1]) {
          const given = Object.fromEntries(Object.entries({ ...headers, ...more }).filter(([, value]) => value !== undefined))
          const answer = await post(url, rpc(id, 'echo'), given)
          t.equal(answer.status, status)
          t.match(answer.headers['content-type'], /^application\/json/)
          t.strictSame({ ...answer.json(), error: answer.json().error.code }, { jsonrpc: '2.0', error: code, id }, JSON.stringify([more, id]))
        }
      }
    })

    await t.test('what is no JSON-RPC message is refused in a clear form', async t => {
      const { url, log } = await startApp(t, backend)
      const session = await initialize(url)
      const cases: Array<[body: string, status: number, code: number, id: unknown]> = [
        ['{"jsonrpc":', 400, -32700, null],
        ['\u0000', 400, -32700, null],
        ['', 400, -32600, null],
        ['null', 400, -32600, null],
        ['"text"', 400, -32600, null],
        ['[]', 400, -32600, null],
        ['[1]', 400, -32600, null],
        ['{}', 400, -32600, null],
        ['{"jsonrpc":"1.0","id":3,"method":"ping"}', 400, -32600, 3],
        ['{"jsonrpc":"2.0","id":1.5,"method":"ping"}', 400, -32600, 1.5],
        ['{"jsonrpc":"2.0","id":null,"method":"ping"}', 400, -32600, null],
        ['{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}', 400, -32600, null],
        ['{"jsonrpc":"2.0","id":"x","method":5}', 400, -32600, 'x'],
        ['{"jsonrpc":"2.0","id":4,"method":"ping","params":[]}', 400, -32600, 4],
        ['{"jsonrpc":"2.0","id":5}', 400, -32600, null],
        ['{"jsonrpc":"2.0","id":5,"result":{},"error":{}}', 400, -32600, null],
        ['{"jsonrpc":"2.0","id":5,"error":{}}', 400, -32600, null],
        // The SDKs drop these without an answer; the client would wait for ever.
        ['{"jsonrpc":"2.0","id":6,"method":"ping","params":{"_meta":"x"}}', 400, -32600, 6],
        ['{"jsonrpc":"2.0","id":6,"method":"tools/call","params":{"name":"echo","_meta":{"progressToken":[]}}}', 400, -32600, 6],
        ['{"jsonrpc":"2.0","id":6,"method":"initialize","params":{"_meta":{"io.modelcontextprotocol/related-task":1}}}', 400, -32600, 6]
      ]
      for (const [body, status, code, id] of cases) {
        const answer = await post(url, body, session.headers)
        t.equal(answer.status, status, body)
        t.strictSame([answer.json().jsonrpc, answer.json().error.code, answer.json().id], ['2.0', code, id], body)
      }
      t.strictSame((await post(url, '{"jsonrpc":"2.0","id":7,"method":"ping","extra":1}', session.headers)).json(),
        { jsonrpc: '2.0', id: 7, result: {} }, 'a member that JSON-RPC does not know is left out')
      for (const type of ['text/plain', 'application/xml', 'application/x-www-form-urlencoded', '']) {
        const answer = await post(url, rpc(1, 'echo', { text: 'x' }), { ...session.headers, 'content-type': type })
        t.equal(answer.status, 415, type)
        t.match(answer.json(), { error: { code: -31005 }, id: null }, type)
      }
      const deep = '['.repeat(100_000) + ']'.repeat(100_000)
      for (const params of [`{"name":"echo","arguments":{"text":${deep}}}`, `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"a","version":"1"},"x":${deep}}`]) {
        const method = params.startsWith('{"name') ? 'tools/call' : 'initialize'
        const answer = await post(url, `{"jsonrpc":"2.0","id":9,"method":"${method}","params":${params}}`, session.headers)
        t.equal(answer.status, 400, `${method} nested too deeply`)
        t.match(answer.json(), { error: { code: -32600 }, id: 9 })
      }
      t.equal((await session.call('echo', { text: 'still here' })).status, 200)
      t.strictSame(log.filter(({ level }) => level >= 50), [], 'bad input is no failure of the server')
    })

    await t.test('HEAD and the methods that the transport does not have touch no stream', async t => {
      const { url } = await startApp(t, backend)
      const session = await initialize(url)
      const { stream } = await session.listen()
      for (const method of ['HEAD', 'PUT', 'PATCH', 'OPTIONS']) t.equal(await statusOf(method, url, session.headers), 404, method)
      await session.call('emit', { n: 1, ms: 0 })
      await stream.until(({ message }) => message?.params?.data?.i === 1)
    })

    await t.test('B71: the body limit is the endpoint\'s own option, and its 413 speaks JSON-RPC', async t => {
      const { url } = await startApp(t, backend, { bodyLimit: 1_000_000 })
      const session = await initialize(url)
      const running = await session.call('tick', { n: 20, ms: 20 })
      for (const bytes of [90_000, 110_000, 900_000]) {
        const text = 'x'.repeat(bytes)
        const { result } = await (await session.call('echo', { text })).response()
        t.ok(result.content[0].text === text, `${bytes} bytes come back whole`)
      }
      for (const bytes of [1_100_000, 50_000_000]) {
        const answer = await post(url, rpc(1, 'echo', { text: 'x'.repeat(bytes) }), session.headers)
        t.equal(answer.status, 413, `${bytes} bytes`)
        // The body was not read, so its id is not known.
        t.match(answer.json(), { jsonrpc: '2.0', error: { code: -31005, message: String }, id: null })
      }
      t.match(await running.response(), { result: { content: [{ text: 'ticked 20' }] } }, 'the other call is unaffected')
    })

    await t.test('B71: without the option 4 MiB pass', async t => {
      const { url } = await startApp(t, backend)
      const session = await initialize(url)
      t.equal((await (await session.call('echo', { text: 'x'.repeat(4_000_000) })).response()).result.content[0].text.length, 4_000_000)
      t.equal((await post(url, rpc(1, 'echo', { text: 'x'.repeat(4 * 1024 * 1024) }), session.headers)).status, 413)
    })

    await t.test('B69: no session header never means the only session there is', async t => {
      const ran: string[] = []
      const { url, app } = await startApp(t, backend, {
        server: toolServer(async ({ name }) => {
          ran.push(name)
          return name
        })
      })
      const session = await initialize(url)
      const { stream } = await session.listen()
      for (const answer of await all(withId(session, undefined))) {
        t.equal(answer.status, 400)
        t.match(answer.json().error.message, /Mcp-Session-Id is missing/)
      }
      t.strictSame(ran, [], 'nothing was executed')
      t.strictSame(app.mcp.load, { servers: 1, connections: 1 }, 'nothing was attached')
      await app.mcp.notify(session.sessionId, { method: 'notifications/test' })
      await stream.until(({ message }) => message?.method === 'notifications/test')
    })

    await t.test('B92: unknown, deleted and expired sessions get one and the same 404', async t => {
      const { url, app } = await startApp(t, backend, { sessionTtlMs: 1000, handshakeMs: 1000, retention: { windowMs: 17_000 } })
      const [deleted, expired] = [await initialize(url), await initialize(url)]
      t.equal((await deleted.del()).status, 204)
      await until(async () => await app.mcp.session(expired.sessionId) === undefined, 'the session has expired')
      for (const session of [deleted, expired, withId(deleted, WELL_FORMED), withId(deleted, 'no-id-of-ours')]) {
        for (const answer of await all(session)) {
          t.equal(answer.status, 404)
          t.equal(answer.body, NOT_FOUND, 'byte for byte, the id null')
          t.match(answer.headers['content-type'], /^application\/json/)
        }
      }
    })
  })
}

t.test('B92: while Redis is away nobody is told that the session is gone', async t => {
  const proxy = await startFaultProxy(t, redisUrl())
  const { url } = await startApp(t, 'redis', { redisUrl: proxy.url, patienceMs: 300 })
  const session = await initialize(url)
  const { id: cursor } = (await (await session.call('echo', { text: 'x' })).stream.next())
  proxy.refuse()
  proxy.reset()

  // B92 asks for 503. DESIGN.md section 11 wins: a 503 kills Python 1.x clients and makes others deaf for good, so a
  // request gets its own error with status 200 and a GET a stream that ends with its cursor.
  const call = await session.call('echo', { text: 'x' })
  t.equal(call.status, 200)
  t.match(call.json(), { id: call.id, error: { code: -31004, data: { retryAfter: Number } } })
  const listener = await session.resume(cursor!)
  t.match(listener, { status: 200, headers: { 'mcp-resume': 'away' } })
  const [frame, ...others] = await listener.stream.rest()
  t.strictSame(others, [])
  t.match(frame, { data: '', retry: Number })
  t.equal(frame!.id!.replace(/\.[0-9a-z]{2,4}$/, ''), cursor, 'it keeps its cursor')
  t.match((await (await session.listen()).stream.rest()).map(({ id }) => id), [], 'a fresh GET has none to keep')
  for (const answer of [await session.notify('notifications/roots/list_changed'), await session.respond('r.1', {}), await session.del()]) {
    t.equal(answer.status, 503)
    t.match(answer.headers['retry-after'], /^\d+$/)
    t.match(answer.json(), { error: { code: -31004 }, id: null })
  }

  proxy.restore()
  await until(async () => (await session.notify('notifications/roots/list_changed')).status === 202, 'Redis is back')
  t.match(await (await session.call('echo', { text: 'again' })).response(), { result: { content: [{ text: 'again' }] } })
})

t.test('B92: a session outlives the replicas that served it', async t => {
  const env = { REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t), KEEP_ALIVE_MS: 500 }
  const old = await Promise.all([startReplica(t, env), startReplica(t, env)])
  const session = await initialize(old[0].url)
  const { stream } = await session.at(old[1].url).listen()
  await session.call('emit', { n: 1, ms: 0 })
  const { id: cursor } = (await stream.until(({ message }) => message?.params?.data?.i === 1)).at(-1)!
  for (const replica of old) t.strictSame(await replica.sigterm(), { code: 0, signal: null })
  const fresh = await Promise.all([startReplica(t, env), startReplica(t, env)])

  const [here, there] = fresh.map(({ url }) => session.at(url))
  t.match(await (await here!.call('emit', { n: 1, ms: 0 })).response(), { result: { content: [{ text: 'emitting 1' }] } })
  const resumed = await there!.resume(cursor!)
  t.match(resumed, { status: 200, headers: { 'mcp-resume': /^resumed;/ } })
  t.match((await resumed.stream.until(({ message }) => message?.method === 'notifications/message')).at(-1), { message: { params: { data: { i: 1 } } } })
})

t.test('a probe of the era without sessions falls back at once: -32601, its id, and no Redis command', async t => {
  const proxy = await startFaultProxy(t, redisUrl())
  const { url } = await startApp(t, 'redis', { redisUrl: proxy.url })
  // Commands about a session carry its hash tag; what a replica does for itself does not.
  const asked: string[] = []
  proxy.loseReplyTo(({ name, args }) => {
    if (args.some(arg => arg.includes('{'))) asked.push(name)
    return false
  })
  const session = await initialize(url)
  t.ok(asked.splice(0).length > 0, 'commands are seen')
  const probe = { 'mcp-protocol-version': '2026-07-28', 'mcp-method': 'server/discover' }
  const meta = { _meta: { 'io.modelcontextprotocol/protocolVersion': '2026-07-28' } }
  for (const [body, headers] of [
    [{ jsonrpc: '2.0', id: 'p1', method: 'server/discover', params: meta }, probe],
    [{ jsonrpc: '2.0', id: 'p1', method: 'server/discover', params: {} }, {}],
    [{ jsonrpc: '2.0', id: 'p1', method: 'tools/call', params: { name: 'echo', ...meta } }, {}],
    [{ jsonrpc: '2.0', id: 'p1', method: 'tools/list' }, { ...session.headers, ...probe }]
  ] as const) {
    const answer = await post(url, body, headers)
    t.equal(answer.status, 400)
    t.match(answer.json(), { error: { code: -32601 }, id: 'p1' })
  }
  t.strictSame(asked, [])
  // C# clients send Mcp-Method with legacy requests too: it decides nothing.
  t.equal((await session.request('tools/list', {}, { headers: { 'mcp-method': 'tools/list' } })).status, 200)
})
