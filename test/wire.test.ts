// The answers to POST, GET and DELETE in the three protocol versions with sessions (DESIGN.md section 6).
import { request } from 'node:http'
import type { OutgoingHttpHeaders } from 'node:http'
import { McpServer } from '@modelcontextprotocol/server'
import t from 'tap'
import { backends, startApp } from './helpers/plugin-app.ts'
import { initialize, post } from './helpers/sse-client.ts'
import type { Call, Session } from './helpers/sse-client.ts'
import { eventsOf, offsets } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

const VERSIONS = ['2025-03-26', '2025-06-18', '2025-11-25']

/** Whether a stream begins with an empty event that is a cursor. */
async function opensWithCursor ({ stream }: Call): Promise<boolean> {
  const frames = await stream.rest()
  if (frames.slice(1).some(({ data }) => data === '')) throw new Error('an empty event in the middle')
  return frames[0]!.data === ''
}

/** A server whose quick methods are what the test makes of them; it declares no logging. */
function quickServer (handlers: { read?: () => Promise<void>, greet?: (notify: (n: number) => Promise<void>) => Promise<void> } = {}): () => McpServer {
  return () => {
    const mcp = new McpServer({ name: 'quick', version: '1' }, { capabilities: { resources: {}, prompts: {}, tools: {} } })
    mcp.server.setRequestHandler('resources/read', async () => {
      await handlers.read?.()
      return { contents: [{ uri: 'x:1', text: 'read' }] }
    })
    mcp.server.setRequestHandler('prompts/get', async (_request, ctx) => {
      await handlers.greet?.(n => ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken: 'p', progress: n } }))
      return { messages: [] }
    })
    return mcp
  }
}

/** Status and content type with exactly these headers, `Accept` included or not. */
function statusOf (method: string, { url, headers }: Session, accept: string | undefined, body?: unknown): Promise<[number | undefined, string | undefined]> {
  const given: OutgoingHttpHeaders = { ...headers, 'content-type': 'application/json', ...(accept !== undefined && { accept }) }
  return new Promise((resolve, reject) => {
    const outgoing = request(url, { method, headers: given, agent: false }, answer => {
      resolve([answer.statusCode, answer.headers['content-type']?.split(';')[0]])
      answer.destroy()
    })
    outgoing.on('error', reject)
    outgoing.end(body === undefined ? undefined : JSON.stringify(body))
  })
}

for (const backend of backends) {
  t.test(backend, async t => {
    for (const protocolVersion of VERSIONS) {
      const modern = protocolVersion >= '2025-11-25'

      await t.test(`${protocolVersion}: a session from initialize to DELETE`, async t => {
        const { url } = await startApp(t, backend)
        const opened = await post(url, { jsonrpc: '2.0', id: 'i', method: 'initialize', params: { protocolVersion, capabilities: {}, clientInfo: { name: 'raw', version: '1' } } })
        t.equal(opened.status, 200)
        t.match(opened.headers, { 'content-type': /^application\/json/, 'mcp-session-id': /^[A-Za-z0-9_-]{32}$/ })
        t.match(opened.json(), { id: 'i', result: { protocolVersion } })

        const session = await initialize(url, { protocolVersion, initialized: false })
        const early = await session.listen()
        t.equal(early.status, 200, 'a listener does not wait for notifications/initialized')
        const accepted = await session.notify('notifications/initialized')
        t.match(accepted, { status: 202, body: '' })
        t.notOk('content-type' in accepted.headers)

        const call = await session.call('tick', { n: 3, ms: 0 }, { progressToken: 'p' })
        t.match(call, { status: 200, headers: { 'content-type': 'text/event-stream', 'cache-control': 'no-cache, no-transform', 'x-accel-buffering': 'no' } })
        const frames = await call.stream.rest()
        const events = eventsOf(frames)
        t.equal(frames[0]!.data === '', modern, 'an opening frame')
        if (!modern) t.equal(call.stream.comments[0], 'open')
        t.strictSame(events.map(({ offset }) => offset), offsets(modern ? 0 : 1, 4), 'every event has an ID')
        t.equal(new Set(events.map(({ stream }) => stream)).size, 1)
        t.match(events.map(({ message }) => message).filter(Boolean), [
          ...[1, 2, 3].map(progress => ({ method: 'notifications/progress', params: { progressToken: 'p', progress } })),
          { id: call.id, result: { content: [{ text: 'ticked 3' }] } }
        ])
        t.equal(await call.stream.ended, 'end')
        t.ok(frames.every(({ retry, event }) => retry === undefined && event === undefined))

        const resumed = await session.resume(events.at(-3)!.id)
        t.match(resumed, { status: 200, headers: { 'mcp-resume': /^resumed;cause=replay;replay=2;head="\d+-4-[0-9a-z]{8}-[0-9a-z]{4}"$/ } })
        const [first, ...replayed] = await resumed.stream.rest()
        t.match(first!.id, `${events.at(-3)!.id}.`, 'the cursor again, in an ID of its own')
        // Clients below 2025-11-25 cannot read empty data: on a request's stream the ID rides on a message.
        t.match(first, modern ? { data: '' } : { message: { method: 'notifications/message', params: { level: 'debug', data: { outcome: 'resumed' } } } })
        t.strictSame(eventsOf(replayed).map(({ id }) => id), events.slice(-2).map(({ id }) => id))

        const drained = await session.resume(events.at(-1)!.id)
        t.match(drained, { status: 204, body: '', headers: { 'mcp-resume': /^resumed;cause=caught-up;replay=0;head=/ } })
        t.notOk('content-type' in drained.headers, 'P1 and P2 loop on a 204 with a content type')

        t.match(await session.del(), { status: 204, body: '' })
        t.equal(await early.stream.ended, 'end')
        t.strictSame(early.stream.frames.map(({ data }) => data), modern ? [''] : [], 'what a listener below 2025-11-25 gets is a comment')
        t.equal((await session.request('ping')).status, 404)
      })

      await t.test(`B73, ${protocolVersion}: empty events by the negotiated version, whatever the header says`, async t => {
        const { url } = await startApp(t, backend)
        const session = await initialize(url, { protocolVersion })
        for (const version of [...VERSIONS, undefined]) {
          const { 'mcp-protocol-version': _negotiated, ...headers } = session.headers
          const answer = await post(url, { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'echo', arguments: { text: 'x' } } },
            { ...headers, ...(version !== undefined && { 'mcp-protocol-version': version }) })
          t.equal(await opensWithCursor(answer as Call), modern, version ?? 'no header')
          t.ok(answer.stream.frames.every(({ id }) => id !== undefined), 'real events have IDs all the same')
        }
      })

      await t.test(`B75, ${protocolVersion}: a comment keeps every client alive, and every client has a cursor`, async t => {
        const { url } = await startApp(t, backend, { keepAliveMs: 100 })
        const session = await initialize(url, { protocolVersion })
        const [a, b] = [await session.call('tick', { n: 2, ms: 250 }), await session.call('tick', { n: 2, ms: 250 })]
        const frames = [await a.stream.next(), await b.stream.next()]
        await until(() => a.stream.comments.includes('ka'), 'a keep-alive')
        a.cut()
        b.cut()
        const streams = new Set<string>()
        for (const [i, call] of [a, b].entries()) {
          const resumed = await session.resume(frames[i]!.id!)
          const rest = eventsOf(await resumed.stream.rest())
          t.match(rest.at(-1), { message: { id: call.id, result: { content: [{ text: 'ticked 2' }] } } })
          t.strictSame(rest.map(({ offset }) => offset), offsets(modern ? 1 : 2, 3))
          streams.add(rest[0]!.stream)
        }
        t.equal(streams.size, 2, 'two requests, two streams')
      })
    }

    await t.test('whatever version the server negotiates is served, under the header that says so', async t => {
      const { url } = await startApp(t, backend)
      for (const asked of ['2024-10-07', '2024-11-05', ...VERSIONS, '2026-07-28', '1999-01-01', 'new']) {
        const session = await initialize(url, { protocolVersion: asked })
        t.equal(session.protocolVersion, /^202[45]/.test(asked) ? asked : '2025-11-25')
        t.equal((await session.request('ping')).status, 200, asked)
        const { status, stream } = await session.listen()
        t.equal(status, 200, asked)
        if (session.protocolVersion === '2025-11-25') t.equal((await stream.next()).data, '')
      }
    })

    await t.test('quick methods are JSON, and nothing of them is logged', async t => {
      const { url } = await startApp(t, backend)
      const session = await initialize(url)
      const seq = async (): Promise<number> => eventsOf(await (await session.call('echo', { text: 'x' })).stream.rest())[0]!.seq
      const before = await seq()
      for (const [method, params] of [
        ['ping', {}], ['tools/list', {}], ['prompts/list', {}], ['resources/list', {}], ['resources/templates/list', {}],
        ['prompts/get', { name: 'greet', arguments: { name: 'A' } }], ['resources/read', { uri: 'note://hello' }],
        ['completion/complete', { ref: { type: 'ref/prompt', name: 'greet' }, argument: { name: 'name', value: '' } }]
      ] as const) {
        const call = await session.request(method, params)
        t.match(call.headers['content-type'], /^application\/json/, method)
        t.equal(call.json().id, call.id)
      }
      t.equal(await seq(), before + 2, 'only the opening and the result of the call in between')
      t.equal((await session.request('no/such/method')).isStream, true, 'an unknown method may do anything')
    })

    await t.test('a quick method that takes longer than a second, or emits first, becomes a stream', async t => {
      let release = (): void => {}
      const { url } = await startApp(t, backend, {
        server: quickServer({
          read: () => new Promise(resolve => { release = resolve }),
          greet: notify => notify(1)
        })
      })
      const session = await initialize(url)
      const slow = await session.request('resources/read', { uri: 'x:1' })
      const { id, data } = await slow.stream.next()
      t.equal(data, '', 'opened like any other')
      slow.cut()
      release()
      const resumed = await session.resume(id!)
      t.match((await resumed.stream.rest()).at(-1)!.message, { id: slow.id, result: { contents: [{ text: 'read' }] } }, 'and resumable')

      const emitting = await session.request('prompts/get', { name: 'greet' })
      t.match(eventsOf(await emitting.stream.rest()).map(({ message }) => message), [
        undefined, { method: 'notifications/progress', params: { progress: 1 } }, { id: emitting.id, result: { messages: [] } }
      ])
    })

    await t.test('a batch is one JSON array, in 2025-03-26 only', async t => {
      const { url } = await startApp(t, backend)
      const batch = [
        { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'tick', arguments: { n: 2, ms: 0 } } },
        { jsonrpc: '2.0', method: 'notifications/roots/list_changed' },
        { jsonrpc: '2.0', id: '1', method: 'ping' },
        { jsonrpc: '2.0', id: 'r.1', result: {} }
      ]
      for (const protocolVersion of VERSIONS) {
        const session = await initialize(url, { protocolVersion })
        const answer = await post(url, batch, session.headers)
        if (protocolVersion !== '2025-03-26') {
          t.match(answer, { status: 400, body: /"code":-32600/ })
          continue
        }
        t.match(answer, { status: 200, headers: { 'content-type': /^application\/json/ } })
        const byId = new Map(answer.json().map((response: any) => [response.id, response]))
        t.equal(byId.size, 2)
        t.match(byId.get(1), { result: { content: [{ text: 'ticked 2' }] } })
        t.strictSame(byId.get('1'), { jsonrpc: '2.0', id: '1', result: {} })
        t.match(await post(url, batch.slice(1, 2), session.headers), { status: 202, body: '' })
        const streamed = await post(url, batch, { ...session.headers, accept: 'text/event-stream' })
        t.equal((await streamed.stream.rest())[0]!.message.length, 2, 'in the form that the client accepts')
      }
    })

    await t.test('B90: every Accept that can be served is', async t => {
      const { url } = await startApp(t, backend)
      const session = await initialize(url)
      const call = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'echo', arguments: { text: 'x' } } }
      const list = { jsonrpc: '2.0', id: 1, method: 'tools/list' }
      const [json, sse, refused] = [[200, 'application/json'], [200, 'text/event-stream'], [406, 'application/json']] as const
      for (const [accept, toCall, toList, toGet] of [
        ['application/json, text/event-stream', sse, json, sse],
        ['text/event-stream, application/json', sse, json, sse],
        ['*/*', sse, json, sse],
        [undefined, sse, json, sse],
        ['APPLICATION/JSON;q=0.1 , Text/Event-Stream; q=0.9', sse, json, sse],
        ['application/json', json, json, refused],
        ['application/*', json, json, refused],
        ['text/event-stream', sse, sse, sse],
        ['text/*', sse, sse, sse],
        ['text/event-stream;q=0, application/json', json, json, refused],
        ['application/json; q=0.0, */*', sse, sse, sse],
        ['text/html', refused, refused, refused],
        ['*/*;q=0', refused, refused, refused]
      ] as const) {
        t.strictSame(await statusOf('POST', session, accept, call), toCall, `tools/call, ${accept}`)
        t.strictSame(await statusOf('POST', session, accept, list), toList, `tools/list, ${accept}`)
        t.strictSame(await statusOf('GET', session, accept), toGet, `GET, ${accept}`)
      }
      const sseOnly = await initialize(url, { headers: { accept: 'text/event-stream' } })
      t.match(await (await sseOnly.request('ping')).response(), { result: {} })
    })

    await t.test('a server without logging gets it: a notice of a gap would break a MUST otherwise', async t => {
      const { url } = await startApp(t, backend, { server: quickServer() })
      const session = await initialize(url)
      t.match(session.result.capabilities, { logging: {}, resources: {}, prompts: {}, tools: {} })
      t.strictSame((await session.request('logging/setLevel', { level: 'alert' })).json().result, {})
      t.match((await session.request('logging/setLevel', { level: 'loud' })).json(), { error: { code: -32602 } })
      const { stream } = await session.resume('900-0-1-abcd')
      t.match((await stream.until(({ message }) => message !== undefined)).at(-1), { message: { params: { level: 'alert', data: { outcome: 'future' } } } })
    })

    await t.test('a well-formed answer gets its 202 from any live session, whoever waits', async t => {
      const { url, app } = await startApp(t, backend)
      const session = await initialize(url)
      for (const id of ['r1.7', `r${app.mcp.replicaId}.999`, 'rzzzzzzzz.1', 12, '']) {
        t.match(await session.respond(id, {}), { status: 202, body: '' })
        t.match(await post(url, { jsonrpc: '2.0', id, error: { code: 1, message: 'no' } }, session.headers), { status: 202, body: '' })
      }
      t.equal(app.mcp.counters.unclaimedAnswers, 10)
    })
  })
}
