// What a GET is told before the first event: in `Mcp-Resume` for machines, in frames for the application (DESIGN.md section 6).
import { Server } from '@modelcontextprotocol/server'
import t from 'tap'
import { backends, startApp } from './helpers/plugin-app.ts'
import type { PluginApp } from './helpers/plugin-app.ts'
import { initialize } from './helpers/sse-client.ts'
import type { Answer, Frame, Session } from './helpers/sse-client.ts'
import { dataOf, eventsOf } from './helpers/stream-events.ts'

const RETENTION = { maxEvents: 5 }

async function notify ({ app }: PluginApp, { sessionId }: Session, n: number): Promise<void> {
  for (let i = 1; i <= n; i++) await app.mcp.notify(sessionId, { method: 'notifications/message', params: { level: 'info', data: i } })
}

const isAnnouncement = ({ id, data, message }: Frame): boolean =>
  data === '' || id === undefined || message?.params?.logger === 'fastify-mcp-resume' || /list_changed$|updated$/.test(message?.method)

/** The frames up to the first event of the log, or up to `until`. */
async function announcement ({ stream }: Answer, until = (frame: Frame) => !isAnnouncement(frame)): Promise<Frame[]> {
  return (await stream.until(until)).filter(isAnnouncement)
}

/** `Mcp-Resume` (RFC 9651: a token with parameters), read by its grammar. */
function outcomeOf ({ headers }: Answer): Record<string, unknown> {
  const [outcome, ...params] = String(headers['mcp-resume']).split(';')
  const values = params.map(param => {
    const [, name, text, token, integer] = /^([a-z]+)=(?:"([^"\\]*)"|([a-z][a-z-]*)|(\d+))$/.exec(param)!
    return [name!, text ?? token ?? Number(integer)] as const
  })
  return { outcome, ...Object.fromEntries(values) }
}

for (const backend of backends) {
  t.test(backend, async t => {
    await t.test('every answer to a GET says in Mcp-Resume what it is', async t => {
      const host = await startApp(t, backend, { retention: RETENTION })
      const session = await initialize(host.url)
      const ids: string[] = []
      const listener = await session.listen()
      t.strictSame(outcomeOf(listener), { outcome: 'fresh', replay: 0, head: (await listener.stream.next()).id!.split('.')[0] })
      await notify(host, session, 8)
      for (let i = 0; i < 8; i++) ids.push((await listener.stream.next()).id!)
      listener.cut()
      const call = await session.call('echo', { text: 'x' })
      const result = (await call.stream.rest()).at(-1)!.id!
      // Retained now: the last three messages, and the opening and the result of the call.
      const head = ids[7]!
      const answers: Array<[cursor: string, expected: { outcome: string, cause: string, replay?: number, missed?: number, head: string }]> = [
        [ids[7]!, { outcome: 'resumed', cause: 'caught-up', replay: 0, head }],
        [ids[5]!, { outcome: 'resumed', cause: 'replay', replay: 2, head }],
        [ids[4]!, { outcome: 'resumed', cause: 'replay', replay: 3, head }],
        [ids[3]!, { outcome: 'gap', cause: 'evicted', missed: 1, replay: 3, head }],
        [ids[0]!, { outcome: 'gap', cause: 'evicted', missed: 4, replay: 3, head }],
        [ids[6]!.replace(/....$/, 'zzzz'), { outcome: 'gap', cause: 'diverged', head }],
        ['900-0-1-abcd', { outcome: 'future', cause: 'ahead', replay: 0, head }]
      ]
      for (const [cursor, expected] of answers) {
        const answer = await session.resume(cursor)
        t.equal(answer.status, 200)
        t.strictSame(outcomeOf(answer), expected)
        const { replay = 0 } = expected
        if (replay > 0) t.equal(eventsOf(await answer.stream.until(({ id }) => id === head)).length, replay, 'as many as it says')
        answer.cut()
      }
      for (const [cursor, expected] of [
        [result, { outcome: 'resumed', cause: 'caught-up', replay: 0, head: result }],
        ['2-0-zzzzzzzz-abcd', { outcome: 'gap', cause: 'expired' }],
        ['900-0-zzzzzzzz-abcd', { outcome: 'future', cause: 'ahead' }]
      ] as const) {
        const answer = await session.resume(cursor)
        t.match(answer, { status: 204, body: '' })
        t.strictSame(outcomeOf(answer), expected)
      }
    })

    for (const protocolVersion of ['2025-06-18', '2025-11-25']) {
      const modern = protocolVersion >= '2025-11-25'

      await t.test(`${protocolVersion}: a gap is told to the application, then what to read again, then what is left`, async t => {
        const host = await startApp(t, backend, { retention: RETENTION })
        const session = await initialize(host.url, { protocolVersion })
        for (const uri of ['note://hello', 'note://b']) await (await session.request('resources/subscribe', { uri })).response()
        const listener = await session.listen()
        await notify(host, session, 20)
        const [first] = await listener.stream.until(({ message }) => message?.params?.data === 1)
        const cursor = (modern ? listener.stream.frames[1] : first)!.id!
        const last = (await listener.stream.until(({ message }) => message?.params?.data === 20)).at(-1)!.id!
        listener.cut()

        const answer = await session.resume(cursor)
        const frames = await announcement(answer)
        if (modern) t.match(frames.shift(), { data: '', id: `${cursor}.` }, 'its own cursor, in an ID of its own')
        t.match(frames.map(({ message }) => message), [
          { method: 'notifications/message', params: { level: 'error', data: { outcome: 'gap', cause: 'evicted', missed: 14, from: cursor, to: last } } },
          { method: 'notifications/tools/list_changed' },
          { method: 'notifications/prompts/list_changed' },
          { method: 'notifications/resources/list_changed' },
          { method: 'notifications/resources/updated', params: { uri: 'note://hello' } },
          { method: 'notifications/resources/updated', params: { uri: 'note://b' } }
        ])
        if (!modern) t.match(frames.shift()!.id, `${cursor}.`, 'on the notice, where empty data cannot be read')
        t.ok(frames.every(({ id }) => id === undefined), 'nothing else moves the cursor')
        await notify(host, session, 1)
        const rest = await answer.stream.until(({ message }) => message?.params?.data === 1)
        t.strictSame(dataOf(eventsOf(answer.stream.frames)), [16, 17, 18, 19, 20, 1], 'what is retained, then live')
        t.equal(rest.at(-1)!.retry, undefined)
      })

      await t.test(`${protocolVersion}: a gap with nothing left moves the cursor all the same`, async t => {
        const host = await startApp(t, backend, { retention: RETENTION })
        const session = await initialize(host.url, { protocolVersion })
        const { stream, cut } = await session.listen()
        await notify(host, session, 3)
        const cursor = (await stream.until(({ message }) => message?.params?.data === 1)).at(-1)!.id!
        const newest = (await stream.until(({ message }) => message?.params?.data === 3)).at(-1)!.id!
        cut()
        await (await session.call('tick', { n: 10, ms: 0 })).response()
        const answer = await session.resume(cursor)
        t.strictSame(outcomeOf(answer), { outcome: 'gap', cause: 'evicted', missed: 2, replay: 0, head: newest })
        const frames = await announcement(answer, ({ message }) => message?.method === 'notifications/resources/list_changed')
        t.equal(frames.at(-1)!.id, newest, 'the last notice carries the newest ID')
        answer.cut()
        t.match(outcomeOf(await session.resume(newest)), { outcome: 'resumed', cause: 'caught-up' })
      })

      await t.test(`${protocolVersion}: a future cursor is announced like a gap and led back`, async t => {
        const host = await startApp(t, backend)
        const session = await initialize(host.url, { protocolVersion })
        await notify(host, session, 1)
        const call = await session.call('slow', { ms: 800 })
        const answer = await session.resume('900-3-1-abcd')
        const frames = await announcement(answer, ({ message }) => message?.method === 'notifications/resources/list_changed')
        const { head } = outcomeOf(answer)
        const notices = frames.flatMap(({ message }) => message ?? [])
        t.match(notices[0].params, { level: 'error', data: { outcome: 'future', cause: 'ahead', from: '900-3-1-abcd', to: head } })
        t.notOk('missed' in notices[0].params.data)
        t.equal(frames.at(-1)!.id, head)
        t.equal(host.app.mcp.counters.future, 1)
        t.match(host.log.filter(({ level }) => level === 50), [{ outcome: 'future', cursor: '900-3-1-abcd' }], 'logged at error')
        await notify(host, session, 1)
        t.ok(eventsOf([await answer.stream.next()])[0]!.seq < 10, 'never adopted as the counter')

        const running = await session.resume(`900-3-${(await stream(call))}-abcd`)
        t.match((await running.stream.rest()).at(-1)!.message, { id: call.id, result: { content: [{ text: 'slept 800' }] } }, 'a request that runs is not failed')
      })
    }

    await t.test('the resync set names what the server declared, and request streams get none', async t => {
      const host = await startApp(t, backend, {
        retention: RETENTION,
        server: () => {
          const server = new Server({ name: 'plain', version: '1' }, { capabilities: { tools: { listChanged: true }, resources: {} } })
          server.setRequestHandler('tools/call', async (_request, ctx) => {
            for (let i = 1; i <= 10; i++) await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken: 'p', progress: i } })
            return { content: [{ type: 'text', text: 'done' }] }
          })
          return server
        }
      })
      const session = await initialize(host.url)
      const call = await session.call('any')
      const frames = await call.stream.rest()
      const resumed = await session.resume(frames[1]!.id!)
      const all = await resumed.stream.rest()
      t.strictSame(all.filter(isAnnouncement).map(({ message }) => message?.params.data.missed), [undefined, 5])
      t.strictSame(eventsOf(all).map(({ id }) => id), frames.slice(-5).map(({ id }) => id), 'then what is retained, the result last')
      const standalone = await session.resume('1-0-1-zzzz')
      await notify(host, session, 1)
      const methods = (await announcement(standalone)).map(({ message }) => message?.method)
      t.strictSame(methods, [undefined, 'notifications/message', 'notifications/tools/list_changed'])
    })

    await t.test('a lost response settles the request, under an ID whose next resume is a 204', async t => {
      const slowLists = (): Server => {
        const server = new Server({ name: 'plain', version: '1' }, { capabilities: { tools: {}, resources: {} } })
        const answer = async (_request: unknown, ctx: any): Promise<any> => {
          await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken: 'p', progress: 1 } })
          return { content: [], contents: [] }
        }
        server.setRequestHandler('tools/call', answer)
        server.setRequestHandler('resources/read', answer)
        return server
      }
      for (const protocolVersion of ['2025-06-18', '2025-11-25']) {
        const host = await startApp(t, backend, { retention: RETENTION, server: slowLists })
        const session = await initialize(host.url, { protocolVersion })
        for (const [method, id, expected] of [
          ['tools/call', 'text', { result: { isError: true, content: [{ type: 'text', text: /unknown.*may have run/s }] } }],
          ['tools/call', 77, { result: { isError: true } }],
          ['resources/read', '78', { error: { code: -31001, message: /unknown/ } }]
        ] as const) {
          const call = await session.request(method, { name: 'any', uri: 'x:1' }, { id })
          const cursor = (await call.stream.rest())[0]!.id!
          await notify(host, session, 6)
          const answer = await session.resume(cursor)
          t.match(outcomeOf(answer), { outcome: 'gap', cause: 'evicted' })
          const frames = await answer.stream.rest()
          t.match(frames.at(-2), { message: { params: { data: { outcome: 'gap' } } } }, 'said before')
          t.match(frames.at(-1)!.message, { id, ...expected })
          t.equal(typeof frames.at(-1)!.message.id, typeof id)
          t.equal((await session.resume(frames.at(-1)!.id!)).status, 204)
        }
      }
    })

    for (const [option, outcome, code] of [['onGap', 'gap', -31002], ['onFuture', 'future', -31003]] as const) {
      const cursorOf = async (host: PluginApp, session: Session): Promise<string> => {
        const { stream, cut } = await session.listen()
        const { id } = await stream.next()
        cut()
        await notify(host, session, 8)
        return outcome === 'gap' ? id!.split('.')[0]! : '900-0-1-abcd'
      }

      await t.test(`${option}: 'reject' is a 400 that says what and where`, async t => {
        const host = await startApp(t, backend, { retention: RETENTION, [option]: 'reject' })
        const session = await initialize(host.url)
        const answer = await session.resume(await cursorOf(host, session))
        t.equal(answer.status, 400)
        const { cause, head } = outcomeOf(answer)
        t.match(answer.json(), { id: null, error: { code, data: { outcome, cause, head } } })
        t.equal((await session.resume(String(head))).status, 200, 'the session is as healthy as before')
      })

      await t.test(`${option}: 'terminate' ends the session with the 404 that clients know`, async t => {
        const host = await startApp(t, backend, { retention: RETENTION, [option]: 'terminate' })
        const session = await initialize(host.url)
        const answer = await session.resume(await cursorOf(host, session))
        t.equal(answer.status, 404)
        t.equal(answer.body, '{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}')
        t.equal(outcomeOf(answer)['outcome'], outcome)
        t.equal((await session.request('ping')).status, 404)
        t.equal(await host.app.mcp.session(session.sessionId), undefined)
      })
    }
  })
}

/** The name of a call's stream, by its opening. */
async function stream (call: Answer): Promise<string> {
  const { id } = call.stream.frames[0] ?? await call.stream.next()
  return id === undefined ? 'zzzzzzzz' : id.split('-')[2]!
}
