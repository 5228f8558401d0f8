// The guard against the plugin itself, on two replicas behind a balancer without affinity: it sees all, and objects to nothing.
import t from 'tap'
import { createResumeGuard, type ResumeGap, type ResumeGuardOptions, type ResumeSequenceError } from '../lib/client/index.ts'
import { startBalancer, type Balancer, type Exchange } from './helpers/balancer.ts'
import { emitData } from './helpers/emit.ts'
import { backends, startPair, type AppOptions, type Backend, type PluginApp } from './helpers/plugin-app.ts'
import { readAsStock, type StockReader } from './helpers/scripted-fetch.ts'
import { connectStock, type Stock } from './helpers/stock-clients.ts'
import type { Owner } from './helpers/teardown.ts'
import { until } from './helpers/wait.ts'

const reconnectionOptions = { initialReconnectionDelay: 10, maxReconnectionDelay: 10, reconnectionDelayGrowFactor: 1, maxRetries: 1000 }
const isListener = ({ method, isOpen, status }: Exchange): boolean => method === 'GET' && isOpen && status === 200
const isCall = ({ method, isOpen, responseHeaders }: Exchange): boolean =>
  method === 'POST' && isOpen && responseHeaders?.['content-type'] === 'text/event-stream'

interface Setting {
  readonly app: PluginApp['app']
  readonly balancer: Balancer
  readonly guard: ReturnType<typeof createResumeGuard>
  /** Announced gaps and violations, and between them what the application saw. */
  readonly gaps: ResumeGap[]
  readonly violations: ResumeSequenceError[]
}

async function setUp (t: Owner, backend: Backend, options: AppOptions = {}, guardOptions: Partial<ResumeGuardOptions> = {}): Promise<Setting> {
  const [a, b] = await startPair(t, backend, options)
  const balancer = await startBalancer(t, [a.url, b.url])
  const gaps: ResumeGap[] = []
  const violations: ResumeSequenceError[] = []
  const guard = createResumeGuard({ onGap (gap) { gaps.push(gap) }, onViolation (error) { violations.push(error) }, silentMs: 1000, ...guardOptions })
  return { app: a.app, balancer, guard, gaps, violations }
}

async function connect (t: Owner, version: 1 | 2, { balancer, guard }: Setting): Promise<Stock> {
  const client = await connectStock(t, version, balancer.url, { fetch: guard.fetch as typeof fetch, reconnectionOptions })
  await until(() => balancer.requests.some(isListener), 'the client listens')
  return client
}

const logged = ({ notifications }: Stock): unknown[] =>
  notifications.filter(({ method }) => method === 'notifications/message').map(({ params }) => params.data.i ?? params.data.outcome)

const upTo = (n: number): number[] => Array.from({ length: n }, (_, i) => i + 1)

for (const backend of backends) {
  for (const version of [1, 2] as const) {
    t.test(`${backend}, client ${version}.x`, async t => {
      await t.test('a listener that is cut while messages come, and twice in a row', async t => {
        const setting = await setUp(t, backend)
        const { app, balancer, guard, gaps, violations } = setting
        const client = await connect(t, version, setting)
        for (let round = 0; round < 8; round++) {
          const sent = emitData(app, client.sessionId!, round * 10 + 1, round * 10 + 10)
          if (round % 2 === 0) await until(() => logged(client).length > round * 10, 'some have come')
          balancer.cut(isListener)
          await until(() => balancer.requests.some(isListener), 'the client is back')
          if (round % 3 === 0) balancer.cut(isListener)
          await sent
        }
        await until(() => logged(client).length >= 80, 'all have come')
        t.strictSame(logged(client), upTo(80))
        t.strictSame([gaps, violations], [[], []])
        t.equal(guard.level(), 'exact')
      })

      await t.test('a call that is cut again and again runs once and comes back whole', async t => {
        const setting = await setUp(t, backend)
        const { balancer, gaps, violations } = setting
        const client = await connect(t, version, setting)
        const progress: number[] = []
        const result = client.callText('tick', { n: 30, ms: 10 }, { onprogress: ({ progress: at }) => { progress.push(at) } })
        await until(() => progress.length > 2, 'it runs')
        balancer.cut(isCall)
        for (let i = 0; i < 5; i++) {
          await until(() => balancer.requests.filter(isListener).length === 2 || progress.length === 30, 'the client is back')
          const resumed = balancer.requests.findLast(isListener)
          if (progress.length < 30) balancer.cut(exchange => exchange === resumed)
        }
        t.equal(await result, 'ticked 30')
        t.strictSame(progress, upTo(30))
        t.strictSame([gaps, violations], [[], []])
      })

      await t.test('a gap: the application is told first, and then gets what is left', async t => {
        const order: unknown[] = []
        let settled = (): void => {}
        const onGap = ({ outcome, stream }: ResumeGap): Promise<void> => {
          order.push(outcome, stream, logged(client).at(-1))
          return new Promise(resolve => { settled = resolve })
        }
        const setting = await setUp(t, backend, { retention: { maxEvents: 5 } }, { onGap })
        const { app, balancer, violations, guard } = setting
        const client = await connect(t, version, setting)
        await emitData(app, client.sessionId!, 1, 3)
        await until(() => logged(client).length === 3, 'the first have come')
        const { targets } = balancer
        balancer.targets = []
        balancer.cut(isListener)
        await emitData(app, client.sessionId!, 4, 20)
        balancer.targets = targets
        await until(() => order.length > 0, 'the gap')
        await client.client.listTools()
        t.strictSame(order, ['gap', '1', 3])
        t.strictSame(logged(client), upTo(3), 'no message before the application is done, though calls go on')
        settled()
        await until(() => logged(client).length === 9, 'what is left')
        await emitData(app, client.sessionId!, 21, 21)
        await until(() => logged(client).length === 10, 'live')
        t.strictSame(logged(client), [1, 2, 3, 'gap', 16, 17, 18, 19, 20, 21])
        t.ok(client.notifications.some(({ method }) => method === 'notifications/tools/list_changed'))
        t.strictSame(violations, [])
        t.equal(guard.level(), 'exact')
      })
    })
  }

  t.test(`${backend}, a client of 2025-06-18`, async t => {
    const { balancer, guard, violations, gaps } = await setUp(t, backend)
    const send = (init: RequestInit, session?: string) => guard.fetch(balancer.url, {
      ...init,
      headers: {
        accept: init.method === 'POST' ? 'application/json, text/event-stream' : 'text/event-stream',
        'content-type': 'application/json',
        ...session !== undefined && { 'mcp-session-id': session, 'mcp-protocol-version': '2025-06-18' },
        ...init.headers
      }
    })
    const post = (message: object, session?: string) => send({ method: 'POST', body: JSON.stringify({ jsonrpc: '2.0', ...message }) }, session)
    const params = { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'old', version: '1' } }
    const session = (await post({ id: 1, method: 'initialize', params })).headers.get('mcp-session-id')!
    await post({ method: 'notifications/initialized' }, session)

    const call = { name: 'tick', arguments: { n: 6, ms: 30 }, _meta: { progressToken: 1 } }
    const readers: StockReader[] = [readAsStock(await post({ id: 2, method: 'tools/call', params: call }, session))]
    const messages = (): any[] => readers.flatMap(({ messages }) => messages).map(data => JSON.parse(data))
    while (!messages().some(({ result }) => result !== undefined)) {
      const reader = readers.at(-1)!
      const before = messages().length
      await until(() => messages().length > before + 1 || reader.outcome !== undefined, 'some progress')
      balancer.cut(exchange => isCall(exchange) || isListener(exchange))
      await reader.ended
      if (messages().some(({ result }) => result !== undefined)) break
      readers.push(readAsStock(await send({ headers: { 'last-event-id': reader.lastEventId! } }, session)))
    }
    t.ok(readers.length > 1)
    t.strictSame(messages().flatMap(({ params }) => params?.progress ?? []), upTo(6))
    t.match(messages().at(-1), { id: 2, result: { content: [{ text: 'ticked 6' }] } })
    t.strictSame([violations, gaps], [[], []])
  })

  t.test(`${backend}, a cursor that the log has not reached`, async t => {
    const setting = await setUp(t, backend)
    const { app, balancer, guard, gaps, violations } = setting
    const client = await connect(t, 2, setting)
    await emitData(app, client.sessionId!, 1, 2)
    await until(() => logged(client).length === 2, 'live')
    await client.close()
    const response = await guard.fetch(balancer.url, {
      headers: { accept: 'text/event-stream', 'mcp-session-id': client.sessionId!, 'mcp-protocol-version': '2025-11-25', 'last-event-id': '99-50-1-aaaa' }
    })
    const reader = readAsStock(response)
    await until(() => reader.messages.length > 0, 'the notice')
    await emitData(app, client.sessionId!, 3, 4)
    const data = (): unknown[] => reader.messages.map(text => JSON.parse(text).params?.data).map(data => data?.i ?? data?.outcome).filter(data => data !== undefined)
    await until(() => data().length === 3, 'live again')
    t.strictSame(data(), ['future', 3, 4])
    t.match(gaps, [{ outcome: 'future', cursor: '99-50-1-aaaa', stream: '1' }])
    t.strictSame(violations, [])
    balancer.cut()
    await reader.ended
  })
}
