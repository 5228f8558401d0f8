// The rules of the endpoint that need no server: headers in, an answer or a refusal out.
import { createParser, type EventSourceMessage } from 'eventsource-parser'
import type { IncomingMessage } from 'node:http'
import t from 'tap'
import { formatEventId, parseEventId, sameEvent, type EventId } from '../lib/event-id.ts'
import { parseAccept } from '../lib/http/accept.ts'
import { announce, readsEmptyData, type Announcement } from '../lib/http/announce.ts'
import { failsOnRetry, isStateless, readCursor, readSessionId, readVersion } from '../lib/http/headers.ts'
import { refuseOrigin, type OriginPolicy } from '../lib/http/origin.ts'
import { idOf } from '../lib/http/refusal.ts'
import type { SessionRecord, Snapshot, StreamState } from '../lib/log/log.ts'
import { decideResume, type Decision } from '../lib/resume.ts'

t.test('B90: Accept in every form that clients send', async t => {
  const both = { json: true, sse: true }
  const json = { json: true, sse: false }
  const sse = { json: false, sse: true }
  const none = { json: false, sse: false }
  const cases: Array<[header: string | undefined, accepted: typeof both]> = [
    [undefined, both], ['', both], ['  ', both], ['*/*', both],
    ['application/json, text/event-stream', both], ['text/event-stream, application/json', both], ['text/event-stream,application/json', both],
    ['application/json', json], ['text/event-stream', sse], ['text/html', none], ['text/html, */*;q=0.1', both],
    ['application/*', json], ['text/*', sse], ['application/*, text/*', both],
    ['APPLICATION/JSON, Text/Event-Stream', both],
    ['application/json;charset=utf-8, text/event-stream', both], ['application/json; q=0.5, text/event-stream; q=0.9', both],
    ['application/json;q=0, text/event-stream', sse], ['application/json, text/event-stream;q=0', json],
    ['application/json;q=0.000, */*', sse], ['*/*, text/event-stream;q=0', json], ['text/*;q=0, */*', json], ['text/*;q=0, text/event-stream', sse],
    ['*/*;q=0', none], ['application/json ; Q = 0, text/event-stream', sse],
    ['application/jsonx, text/event-streams', none], ['json, sse', none], [';,;', none]
  ]
  for (const [header, accepted] of cases) t.strictSame(parseAccept(header), accepted, String(header))
})

interface Given { headers?: Record<string, string | undefined>, localAddress?: string | undefined, rawHeaders?: string[] }

function request ({ headers = {}, localAddress, rawHeaders }: Given): IncomingMessage {
  const given = Object.entries(headers).filter(([, value]) => value !== undefined)
  return { headers: Object.fromEntries(given), rawHeaders: rawHeaders ?? given.flat(), socket: { localAddress } } as unknown as IncomingMessage
}

t.test('B68, B69: the session header is there, once, and of a shape that may become a key', async t => {
  const read = (value?: string) => readSessionId(request({ headers: { 'mcp-session-id': value } }))
  t.equal(read('1868a90c-9f3e-4d2c-8a1b-2f6f3f1c9d55'), '1868a90c-9f3e-4d2c-8a1b-2f6f3f1c9d55')
  t.equal(read(' abc~._-9 '), 'abc~._-9', 'what HTTP allows around a value is no part of it')
  t.throws(() => read(), { status: 400, message: /missing/ })
  t.throws(() => read(''), { status: 400, message: /missing/ })
  for (const value of ['a b', 'a/b', 'a:b', '{a}', 'a*', 'a\0b', 'é', 'a\r\nSET x', '../x', 'x'.repeat(129)]) {
    t.throws(() => read(value), { status: 400, message: /malformed/ }, JSON.stringify(value))
  }
  const twice = ['Mcp-Session-Id', 'a', 'mcp-session-id', 'a']
  t.throws(() => readSessionId(request({ headers: { 'mcp-session-id': 'a, a' }, rawHeaders: twice })), { status: 400, message: /more than once/ })
})

t.test('B68: the cursor is one of ours or refused; an empty header is no header', async t => {
  const read = (value?: string) => readCursor(request({ headers: { 'last-event-id': value } }))
  t.strictSame(read('47-12-1-k3f9.2f'), { seq: 47, offset: 12, stream: '1', tag: 'k3f9' })
  t.equal(read(), undefined)
  t.equal(read(''), undefined)
  t.equal(read('  '), undefined)
  for (const value of ['0', '-1', '47', 'undefined', 'null', '47-12-1-k3f9-2f', 'x'.repeat(8000), '47-12-1-k3f9\0']) {
    t.throws(() => read(value), { status: 400, message: /malformed/ }, value.slice(0, 20))
  }
  const twice = ['Last-Event-ID', '1-0-1-aaaa', 'last-event-id', '2-1-1-bbbb']
  t.throws(() => readCursor(request({ headers: { 'last-event-id': '1-0-1-aaaa' }, rawHeaders: twice })), { status: 400, message: /more than once/ })
})

t.test('protocol versions: those with sessions, an assumed one, and the era without', async t => {
  const read = (value?: string) => readVersion(request({ headers: { 'mcp-protocol-version': value } }))
  for (const version of ['2025-11-25', '2025-06-18', '2025-03-26', '2024-11-05']) t.equal(read(version), version)
  t.equal(read(), '2025-03-26')
  t.equal(read(''), '2025-03-26')
  for (const version of ['2025-01-01', '1', 'latest', '2025-11-25, 2025-11-25']) t.throws(() => read(version), { status: 400, code: -31005, message: /send one of 2025-11-25/ }, version)
  for (const version of ['2026-07-28', '2027-01-01', '9999-12-31']) {
    t.throws(() => read(version), { status: 400, code: -32601 }, version)
    t.ok(isStateless(version))
  }
  for (const version of ['2025-11-25', '2026', 'draft', 20260728, undefined]) t.notOk(isStateless(version), String(version))
  t.ok(failsOnRetry(request({ headers: { 'user-agent': 'Java-http-client/21.0.2' } })))
  t.notOk(failsOnRetry(request({ headers: { 'user-agent': 'node' } })))
  t.notOk(failsOnRetry(request({})))
})

t.test('Origin and Host against DNS rebinding', async t => {
  const open: OriginPolicy = { allowedOrigins: [], allowedHosts: undefined }
  const listed: OriginPolicy = { allowedOrigins: ['https://app.example'], allowedHosts: undefined }
  const named: OriginPolicy = { allowedOrigins: [], allowedHosts: ['mcp.example', 'localhost'] }
  const all: OriginPolicy = { allowedOrigins: '*', allowedHosts: undefined }
  const cases: Array<[what: string, policy: OriginPolicy, host: string | undefined, origin: string | undefined, local: string | undefined, passes: boolean]> = [
    ['no browser', open, 'mcp.example', undefined, '10.0.0.1', true],
    ['no browser on loopback, any name', open, 'evil.example:3000', undefined, '127.0.0.1', true],
    ['no host at all', open, undefined, undefined, '127.0.0.1', true],
    ['same origin', open, 'mcp.example', 'https://mcp.example', '10.0.0.1', true],
    ['same origin, with a port', open, 'mcp.example:8443', 'https://mcp.example:8443', '10.0.0.1', true],
    ['same origin in another case', open, 'MCP.example', 'https://mcp.Example', '10.0.0.1', true],
    ['another port is another origin', open, 'mcp.example:8443', 'https://mcp.example', '10.0.0.1', false],
    ['a sub-domain is another origin', open, 'mcp.example', 'https://a.mcp.example', '10.0.0.1', false],
    ['another origin', open, 'mcp.example', 'https://evil.example', '10.0.0.1', false],
    ['the null origin', open, 'mcp.example', 'null', '10.0.0.1', false],
    ['an empty origin', open, 'mcp.example', '', '10.0.0.1', false],
    ['no host, but an origin', open, undefined, 'https://evil.example', '10.0.0.1', false],
    ['rebinding: a foreign name that resolves to loopback', open, 'evil.example:3000', 'http://evil.example:3000', '127.0.0.1', false],
    ['rebinding over IPv6', open, 'evil.example:3000', 'http://evil.example:3000', '::1', false],
    ['rebinding, mapped', open, 'evil.example:3000', 'http://evil.example:3000', '::ffff:127.0.0.1', false],
    ['a name that only begins like loopback', open, '127.0.0.1.evil.example', 'http://127.0.0.1.evil.example', '127.0.0.1', false],
    ['localhost itself', open, 'localhost:3000', 'http://localhost:3000', '127.0.0.1', true],
    ['127.0.0.1 itself', open, '127.0.0.1:3000', 'http://127.0.0.1:3000', '127.0.0.1', true],
    ['[::1] itself', open, '[::1]:3000', 'http://[::1]:3000', '::1', true],
    ['a listed origin', listed, 'mcp.example', 'https://app.example', '10.0.0.1', true],
    ['a listed origin on loopback', listed, 'localhost:3000', 'https://app.example', '127.0.0.1', true],
    ['another scheme than the listed', listed, 'mcp.example', 'http://app.example', '10.0.0.1', false],
    ['any origin', all, 'localhost:3000', 'https://evil.example', '127.0.0.1', true],
    ['a named host', named, 'mcp.example:443', undefined, '10.0.0.1', true],
    ['a named host, behind a proxy on loopback', named, 'mcp.example', 'https://mcp.example', '127.0.0.1', true],
    ['a host that is not named, without a browser', named, 'evil.example', undefined, '10.0.0.1', false],
    ['no host where hosts are named', named, undefined, undefined, '10.0.0.1', false],
    ['any origin, but a host that is not named', { allowedOrigins: '*', allowedHosts: ['mcp.example'] }, 'evil.example', 'https://evil.example', '10.0.0.1', false]
  ]
  for (const [what, policy, host, origin, localAddress, passes] of cases) {
    const reason = refuseOrigin(request({ headers: { host, origin }, localAddress }), policy)
    t.equal(reason === undefined, passes, `${what}: ${reason ?? 'passes'}`)
  }
})

t.test('a refusal echoes the id of what it refuses', async t => {
  t.equal(idOf({ jsonrpc: '2.0', id: 7, method: 'x' }), 7)
  t.equal(idOf({ jsonrpc: '2.0', id: '7', method: 'x' }), '7')
  for (const body of [undefined, null, 'x', [], [{ id: 1, method: 'x' }], { id: 1 }, { id: null, method: 'x' }, { id: {}, method: 'x' }, { method: 'x' }]) {
    t.equal(idOf(body), null, JSON.stringify(body))
  }
})

// announce: a stream of five events, o1 to o5, whose evicted ones and state vary.

const STREAM = 'x81mzq0d'
const at = (offset: number, stream = STREAM): EventId => ({ seq: 10 + 2 * offset, offset, stream, tag: `tag${offset}` })
const session: SessionRecord = {
  version: '2025-11-25', initialize: {}, capabilities: { logging: {}, tools: { listChanged: true }, prompts: {}, resources: { listChanged: true } }, principal: '', initialized: true, logLevel: undefined, subscriptions: ['file:///a', 'file:///b']
}
const request1 = { id: 'q', method: 'tools/call', digest: 'd' }

function announced (cursor: EventId, { version = '2025-11-25', logLevel, ...state }: Partial<StreamState> & { version?: string, logLevel?: string } = {}): Announcement & { decision: Decision, events: EventSourceMessage[] } {
  const standalone = cursor.stream === '1'
  const newest = state.newest ?? at(5, cursor.stream)
  const stream: StreamState = {
    newest, evicted: undefined, finished: false, runner: 'r', request: standalone ? undefined : request1, carrier: undefined, fence: 0, watermark: at(0, cursor.stream), ...state
  }
  const snapshot: Snapshot = {
    session: { ...session, version, logLevel },
    head: 20,
    floor: stream.evicted === undefined ? 1 : stream.evicted.seq + 1,
    stream,
    retained: cursor.offset <= newest.offset && cursor.offset > (stream.evicted?.offset ?? -1) && sameEvent(cursor, at(cursor.offset, cursor.stream)),
    cursor
  }
  const decision = decideResume(cursor, snapshot)
  if (decision.cause === 'expired') throw new Error('expired is answered before')
  const announcement = announce(cursor, decision, snapshot, '2f')
  const events: EventSourceMessage[] = []
  createParser({ onEvent: event => events.push(event) }).feed(announcement.text)
  return { ...announcement, decision, events }
}

const shape = (events: readonly EventSourceMessage[]) => events.map(({ id, data }) => [id, data === '' ? '' : JSON.parse(data).method ?? 'response'])
const data = ({ data }: EventSourceMessage) => JSON.parse(data).params

t.test('resumed: the cursor again under a fresh ID, nothing else', async t => {
  const { text, position, anchored, ended } = announced(at(3))
  t.equal(text, 'id: 16-3-x81mzq0d-tag3.2f\ndata: \n\n')
  t.strictSame([position, anchored, ended], [at(3), false, false])
  t.strictSame(parseEventId('16-3-x81mzq0d-tag3.2f'), at(3))
})

t.test('B73: older clients get no empty data; a request stream carries the ID on a debug message', async t => {
  t.notOk(readsEmptyData('2025-06-18'))
  t.equal(announced(at(3, '1'), { version: '2025-06-18' }).text, ': resumed\n')
  const { events } = announced(at(5), { version: '2025-06-18' })
  t.strictSame(shape(events), [['20-5-x81mzq0d-tag5.2f', 'notifications/message']])
  t.match(data(events[0]!), { level: 'debug', data: { outcome: 'resumed', cause: 'caught-up' } })
})

t.test('gap on the standalone stream: notice, then what makes the client read again', async t => {
  const { events, position, anchored, ended, decision } = announced(at(1, '1'), { evicted: at(3, '1') })
  t.match(decision, { cause: 'evicted', missed: 2 })
  t.strictSame(shape(events), [
    ['12-1-1-tag1.2f', ''],
    [undefined, 'notifications/message'],
    [undefined, 'notifications/tools/list_changed'],
    [undefined, 'notifications/resources/list_changed'],
    [undefined, 'notifications/resources/updated'],
    [undefined, 'notifications/resources/updated']
  ].map(([id, what]) => [id, what]), 'only what the server declared, and each subscription')
  t.strictSame(data(events[1]!), {
    level: 'error', logger: 'fastify-mcp-resume', data: { outcome: 'gap', cause: 'evicted', missed: 2, from: '12-1-1-tag1', to: '20-5-1-tag5' }
  })
  t.strictSame([position, anchored, ended], [at(3, '1'), false, false], 'delivery goes on after the newest evicted event')
})

t.test('gap with nothing retained: the last notice moves the cursor', async t => {
  for (const version of ['2025-11-25', '2025-06-18']) {
    const { events, position, ended } = announced(at(1, '1'), { evicted: at(5, '1'), version })
    t.strictSame([parseEventId(events.at(-1)!.id!), position, ended], [at(5, '1'), at(5, '1'), false])
    t.strictSame(events.filter(({ data }) => data === '').length, version === '2025-11-25' ? 1 : 0, 'empty data only for those that read it')
    t.ok(sameEvent(parseEventId(events[0]!.id!)!, at(1, '1')), 'until then the cursor is the client\'s own')
  }
})

t.test('gap on a request stream that still runs: no resync, no response', async t => {
  const { events, position, ended } = announced(at(1), { evicted: at(5) })
  t.strictSame(shape(events), [['12-1-x81mzq0d-tag1.2f', ''], ['20-5-x81mzq0d-tag5', 'notifications/message']])
  t.strictSame([position, ended], [at(5), false])
})

t.test('lost response: settled for the client, under an ID whose next resume is a 204', async t => {
  for (const [method, settled] of [['tools/call', { result: { isError: true } }], ['prompts/weird', { error: { code: -31001 } }]] as const) {
    const { events, ended } = announced(at(1), { evicted: at(5), finished: true, request: { id: 7, method, digest: 'd' } })
    t.match(JSON.parse(events.at(-1)!.data), { jsonrpc: '2.0', id: 7, ...settled })
    t.ok(ended)
    const id = parseEventId(events.at(-1)!.id!)!
    t.strictSame(id, at(5))
    t.equal(announced(id, { evicted: at(5), finished: true }).decision.cause, 'caught-up')
  }
})

t.test('after a gap a retained response is delivered by the log, under its own ID', async t => {
  const { events, position, anchored, ended } = announced(at(1), { evicted: at(3), finished: true })
  t.notOk(events.some(({ data }) => data.includes('"result"')), 'not invented')
  t.strictSame([position, anchored, ended], [at(3), false, false])

  // The cursor is no event of this log but lies at or behind the newest, which is the response.
  for (const cursor of [{ ...at(5), tag: 'othr' }, { ...at(5), seq: 30 }]) {
    const foreign = announced(cursor, { finished: true })
    t.match(foreign.decision.cause, cursor.seq === 30 ? 'ahead' : 'diverged')
    t.ok(foreign.anchored && foreign.position.seq === at(5).seq - 1, 'the response is read from the log')
    t.notOk(foreign.events.some(({ id }) => id === formatEventId(at(5))), 'so no notice may take its ID')
    t.notOk(foreign.ended)
  }
})

t.test('future: named as such, and back to the newest real event', async t => {
  const { events, position, ended } = announced({ ...at(3, '1'), seq: 99 })
  t.match(data(events[1]!), { level: 'error', data: { outcome: 'future', cause: 'ahead', from: '99-3-1-tag3', to: '20-5-1-tag5' } })
  t.notOk('missed' in data(events[1]!).data)
  t.equal(events.at(-1)!.id, '20-5-1-tag5')
  t.strictSame([position, ended], [at(5, '1'), false])
})

t.test('diverged: from the first event above the number on, and no count', async t => {
  const { events, position, anchored } = announced({ ...at(3, '1'), tag: 'othr' })
  t.strictSame(data(events[1]!).data, { outcome: 'gap', cause: 'diverged', from: '16-3-1-othr', to: '20-5-1-tag5' })
  t.strictSame([position.seq, anchored], [16, true])
})

t.test('a notice is never below what the client asked to see', async t => {
  const level = (logLevel: string) => data(announced(at(1, '1'), { evicted: at(3, '1'), logLevel }).events[1]!).level
  t.strictSame(['debug', 'info', 'error', 'critical', 'emergency'].map(level), ['error', 'error', 'error', 'critical', 'emergency'])
})
