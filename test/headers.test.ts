// Heads of answers: what SSE needs, what the host set, what a browser may read; and Design B, which promises nothing.
import { once } from 'node:events'
import { connect as connectHttp2 } from 'node:http2'
import { connect } from 'node:net'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { backends, startApp } from './helpers/plugin-app.ts'
import type { AppOptions } from './helpers/plugin-app.ts'
import { get, initialize, post } from './helpers/sse-client.ts'
import type { Answer } from './helpers/sse-client.ts'
import { startReplica } from './helpers/replica.ts'
import { until } from './helpers/wait.ts'

const OWN = 'Mcp-Session-Id, Mcp-Resume, MCP-Protocol-Version'

for (const backend of backends) {
  t.test(backend, async t => {
    await t.test('the head of a stream comes with a byte of its body, and nothing may hold it back', async t => {
      const { url } = await startApp(t, backend)
      const { headers } = await initialize(url)
      const { host, hostname, port } = new URL(url)
      const socket = connect({ host: hostname, port: Number(port) })
      t.teardown(() => socket.destroy())
      await once(socket, 'connect')
      socket.write(['GET /mcp HTTP/1.1', `host: ${host}`, 'accept-encoding: gzip, br', ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`), '', ''].join('\r\n'))
      const [chunk] = await once(socket, 'data') as [Buffer]
      const [head, body] = chunk.toString().split('\r\n\r\n')
      t.match(head, /^HTTP\/1.1 200 /)
      t.match(body, /\n/, 'some middle-boxes and clients wait for the first byte')
      for (const line of ['content-type: text/event-stream', 'cache-control: no-cache, no-transform', 'x-accel-buffering: no']) t.match(head!.toLowerCase(), line)
      t.notMatch(head, /content-length|content-encoding/i)
    })

    await t.test('B99: a stream carries every header that the host\'s hooks have set, and is answered once', async t => {
      const answered: string[] = []
      const { url, log } = await startApp(t, backend, {
        before: app => {
          app.addHook('onRequest', async (request, reply) => {
            reply.headers({ 'x-request-id': request.id, 'access-control-allow-origin': 'https://app.example', vary: 'Origin', 'content-length': '7', etag: 'x' })
            reply.header('set-cookie', 'a=1').header('set-cookie', 'b=2')
            reply.removeHeader('content-length')
          })
          app.addHook('preHandler', async (_request, reply) => { reply.header('strict-transport-security', 'max-age=1') })
          app.addHook('onResponse', async request => { answered.push(request.method) })
        }
      })
      const session = await initialize(url)
      const json = await session.request('ping')
      const call = await session.call('echo', { text: 'x' })
      const listener = await session.listen()
      for (const { headers } of [call, listener]) {
        for (const name of ['x-request-id', 'access-control-allow-origin', 'vary', 'set-cookie', 'strict-transport-security']) {
          t.ok(headers[name] !== undefined && json.headers[name] !== undefined, name)
        }
        t.strictSame(headers['set-cookie'], ['a=1', 'b=2'])
        t.match(headers, { 'content-type': 'text/event-stream' })
        t.notOk('etag' in headers || 'content-length' in headers, 'but none that is about another body')
      }
      await call.stream.rest()
      await session.del()
      await listener.stream.ended
      await until(() => answered.length === 6, 'every request is over')
      t.strictSame(answered.sort(), ['DELETE', 'GET', 'POST', 'POST', 'POST', 'POST'], 'onResponse once each')
      t.strictSame(log.filter(({ level }) => level >= 40), [], 'nothing was sent twice')
    })

    await t.test('B88: a browser script may read the session id on every answer, and the host\'s policy stays', async t => {
      const origin = 'https://app.example'
      const options: AppOptions = { allowedOrigins: [origin], bodyLimit: 2000 }
      const policed = await startApp(t, backend, {
        ...options,
        before: app => app.addHook('onRequest', async (_request, reply) => {
          reply.headers({ 'access-control-allow-origin': origin, 'access-control-expose-headers': 'X-Own' })
        })
      })
      const plain = await startApp(t, backend, options)
      for (const [{ url }, exposed, allowed] of [[policed, `X-Own, ${OWN}`, origin], [plain, OWN, undefined]] as const) {
        const session = await initialize(url, { headers: { origin } })
        const answers: Answer[] = [
          await post(url, { jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'a', version: '1' } } }, { origin }),
          await session.notify('notifications/roots/list_changed'), await session.request('ping'), await session.call('echo', { text: 'x' }),
          await session.listen(), await session.resume('900-0-zzzzzzzz-abcd'), await session.resume('x'),
          await post(url, '{', session.headers), await post(url, 'x'.repeat(3000), session.headers), await post(url, 'x', { origin, 'content-type': 'text/plain' }),
          await get(url, { origin: 'https://evil.example' }), await session.del(), await session.request('ping')
        ]
        t.strictSame(answers.map(({ status }) => status), [200, 202, 200, 200, 200, 204, 400, 400, 413, 415, 403, 204, 404])
        for (const { status, headers } of answers) {
          t.equal(headers['access-control-expose-headers'], exposed, String(status))
          t.equal(headers['access-control-allow-origin'], allowed, 'whom to allow is the host\'s business')
        }
      }
      t.notOk('access-control-expose-headers' in (await get(plain.url)).headers, 'no browser, no header')
    })

    await t.test('B83: the retry hint is an integer of 2 to 3 s, in the frame before the server closes, and nowhere else', async t => {
      for (const protocolVersion of ['2025-06-18', '2025-11-25']) {
        const { url, app } = await startApp(t, backend)
        const session = await initialize(url, { protocolVersion })
        const streams = [await session.listen(), await session.call('slow', { ms: 60_000 })].map(({ stream }) => stream)
        const java = await initialize(url, { protocolVersion, headers: { 'user-agent': 'Java-http-client/21.0.1' } })
        // A `retry:` line fails every call of a Java client (java-sdk#1047).
        const javas = [await java.listen(), await java.call('slow', { ms: 60_000 })].map(({ stream }) => stream)
        const closing = app.close()
        for (const stream of [...streams, ...javas]) t.equal(await stream.ended, 'end', 'never destroyed')
        await closing
        for (const stream of streams) {
          const raw = stream.raw.toString()
          const [, retry] = /\nretry: (\d+)\n(?:data: \n)?\n$/.exec(raw)!
          t.ok(Number(retry) >= 2000 && Number(retry) <= 3000, `retry: ${retry}`)
          t.equal(raw.match(/retry/g)!.length, 1)
          if (protocolVersion === '2025-11-25') t.match(stream.frames.at(-1), { id: /^\d+-\d+-\w+-\w{4}\.\w{2}$/, data: '', retry: Number(retry) }, 'ID, hint and empty data in one frame')
        }
        for (const stream of javas) t.notMatch(stream.raw.toString(), /retry/)
      }
    })
  })
}

t.test('B83: a hint that is zero, huge or no integer is refused at registration', async t => {
  for (const retryMs of [0, 1, -5, 1.5, 2 ** 31, Infinity, NaN, '2000' as never]) {
    await t.rejects(startApp(t, 'memory', { retryMs }), { code: 'MCP_RESUME_ERR_OPTION', message: /retryMs must be a whole number of ms from/ })
  }
})

t.test('over HTTP/2 there are no hop-by-hop headers, and Host is where HTTP/2 has it', async t => {
  const { app } = await startApp(t, 'memory', { fastify: { http2: true } as never, allowedHosts: ['127.0.0.1'], keepAliveMs: 100 })
  const { port } = app.server.address() as AddressInfo
  const origin = `http://127.0.0.1:${port}`
  const client = connectHttp2(origin)
  t.teardown(() => client.destroy())
  const send = async (method: string, headers: Record<string, string>, body?: unknown) => {
    const stream = client.request({ ':method': method, ':path': '/mcp', accept: 'application/json, text/event-stream', 'content-type': 'application/json', ...headers })
    stream.end(body === undefined ? undefined : JSON.stringify(body))
    const [head] = await once(stream, 'response')
    let text = ''
    stream.setEncoding('utf8').on('data', chunk => { text += chunk })
    return { head, stream, text: () => text }
  }
  const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'h2', version: '1' } }
  const opened = await send('POST', { origin }, { jsonrpc: '2.0', id: 1, method: 'initialize', params })
  t.equal(opened.head[':status'], 200, 'the same origin')
  const session = { 'mcp-session-id': String(opened.head['mcp-session-id']) }
  const listener = await send('GET', session)
  t.match(listener.head, { ':status': 200, 'content-type': 'text/event-stream', 'mcp-resume': /^fresh/ })
  for (const name of ['connection', 'keep-alive', 'transfer-encoding', 'upgrade']) t.notOk(name in listener.head, name)
  const call = await send('POST', session, { jsonrpc: '2.0', id: 2, method: 'tools/call', params: { name: 'tick', arguments: { n: 2, ms: 0 } } })
  await once(call.stream, 'end')
  t.match(call.text(), /"ticked 2"/)
  await until(() => /: ka\n/.test(listener.text()), 'a keep-alive')
  t.equal((await send('GET', { ...session, origin: 'http://evil.example' })).head[':status'], 403)
})

t.test('Design B: no id anywhere, nothing is kept, nothing is promised', async t => {
  const replica = await startReplica(t, { RESUMABLE: 0, KEEP_ALIVE_MS: 100 })
  for (const protocolVersion of ['2025-03-26', '2025-06-18', '2025-11-25']) {
    const session = await initialize(replica.url, { protocolVersion })
    const listener = await session.listen()
    t.match(listener, { status: 200, headers: { 'mcp-resume': 'none' } })
    await session.call('emit', { n: 2, ms: 0 })
    await listener.stream.until(({ message }) => message?.params?.data?.i === 2)
    const call = await session.call('tick', { n: 3, ms: 40 })
    const frames = await call.stream.rest()
    t.equal(frames.length, 4)
    t.match(frames.at(-1), { message: { id: call.id, result: { content: [{ text: 'ticked 3' }] } } })
    listener.cut()
    await session.call('emit', { n: 1, ms: 0 })
    for (const cursor of ['1-0-1-abcd', '900-0-zzzzzzzz-abcd', 'x'.repeat(100)]) {
      const again = await session.resume(cursor)
      t.match(again, { status: 200, headers: { 'mcp-resume': 'none' } }, 'a cursor means nothing')
      await until(() => again.stream.comments.includes('ka'), 'a keep-alive')
      t.strictSame(again.stream.frames, [], 'what was sent meanwhile is gone, and no notice claims to know')
      again.cut()
    }
    t.match(await session.del(), { status: 204 })
    for (const { stream } of [listener, call]) t.notMatch(stream.raw.toString(), /^id:/m)
  }
})
