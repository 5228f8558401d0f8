// Both stock SDK clients behind the guard, over real sockets, against servers that resume wrongly. Each fault is first
// shown without the guard: nothing throws, and what the application has seen is wrong.
import type { FetchLike as FetchLike2 } from '@modelcontextprotocol/client'
import type { FetchLike as FetchLike1 } from '@modelcontextprotocol/sdk/shared/transport.js'
import t from 'tap'
import { createResumeGuard, type ResumeGap, type ResumeSequenceError } from '../lib/client/index.ts'
import { startNaiveServer, type NaiveMode, type NaiveServer } from './helpers/naive-servers.ts'
import { connectStock, type Stock } from './helpers/stock-clients.ts'
import type { Owner } from './helpers/teardown.ts'
import { until } from './helpers/wait.ts'

const reconnectionOptions = { initialReconnectionDelay: 20, maxReconnectionDelay: 20, reconnectionDelayGrowFactor: 1, maxRetries: 2 }

interface Setting {
  readonly server: NaiveServer
  readonly client: Stock
  readonly gaps: ResumeGap[]
  readonly violations: ResumeSequenceError[]
  /** The numbers in the log messages that the application saw; `gap` where the server said so. */
  readonly logged: () => unknown[]
  readonly guard: ReturnType<typeof createResumeGuard>
}

async function setUp (t: Owner, version: 1 | 2, mode: NaiveMode, guarded: boolean, silentMs = 30_000): Promise<Setting> {
  const server = await startNaiveServer(t, mode)
  const gaps: ResumeGap[] = []
  const violations: ResumeSequenceError[] = []
  const guard = createResumeGuard({
    onGap (gap) { gaps.push(gap) },
    onViolation (error) { violations.push(error) },
    silentMs
  })
  const client = await connectStock(t, version, server.url, { reconnectionOptions, ...guarded && { fetch: guard.fetch as typeof fetch } })
  await until(() => server.listening, 'the client listens')
  const logged = (): unknown[] => client.notifications.map(({ params }) => params.data.outcome ?? params.data)
  return { server, client, gaps, violations, guard, logged }
}

/** The listener has the messages 1 and 2; then its connection is lost, and `missed` more are sent before it is back. */
async function cutListener ({ server, logged }: Setting, missed: number): Promise<void> {
  server.emit(2)
  await until(() => logged().length === 2, 'two messages')
  server.cut('listener')
  server.emit(missed)
}

t.test('the guard\'s fetch has the type that both clients ask for', async t => {
  const { fetch } = createResumeGuard({ onGap () {}, onViolation () {} })
  const one: FetchLike1 = fetch
  const two: FetchLike2 = fetch
  t.equal(one, two)
})

for (const version of [1, 2] as const) {
  t.test(`client ${version}.x, its listener`, async t => {
    const faults: Array<[mode: NaiveMode, missed: number, without: unknown[], kind: string, last: string, received: string | undefined]> = [
      ['per-connection', 1, [1, 2, 4], 'rebase', '2', '2'],
      ['replay-all', 1, [1, 2, 1, 2, 3, 4], 'rebase', '2', '1'],
      ['clamp', 4, [1, 2, 4, 5, 6, 7], 'gap', '2', '4'],
      ['silent', 0, [1, 2, 3], 'silent', '2', undefined]
    ]
    for (const [mode, missed, without, kind, last, received] of faults) {
      await t.test(`${mode}, without the guard: nothing throws`, async t => {
        const setting = await setUp(t, version, mode, false)
        const { server, logged, client } = setting
        await cutListener(setting, missed)
        await until(() => server.listening, 'the client is back')
        server.emit(1)
        await until(() => logged().length === without.length, 'what the application sees')
        t.strictSame(logged(), without)
        t.notMatch(client.errors.map(String).join(), /Sequence/)
      })

      await t.test(`${mode}, with the guard: ${kind}`, async t => {
        const setting = await setUp(t, version, mode, true, mode === 'silent' ? 200 : undefined)
        const { server, logged, violations, client, guard } = setting
        await cutListener(setting, missed)
        await until(() => server.gets.length === 2, 'the client is back')
        if (mode !== 'silent') server.emit(1)
        await until(() => violations.length > 0, 'the violation')
        t.match(violations, [{ name: 'ResumeSequenceError', kind, last, received, stream: '1' }])
        await until(() => client.errors.some(error => /exceeded/.test(error.message)), 'the client gives up')
        t.match(client.errors.map(String).join(), new RegExp(`${kind}: `), 'the client reports it')
        server.emit(1)
        t.equal(server.listening, false)
        t.strictSame(logged(), [1, 2], 'nothing after it reached the application')
        t.equal(violations.length, 1)
        t.equal(server.gets.length, 2, 'the stream was not tried again')
        t.equal(guard.level(), 'integer')
        t.equal((await client.client.listTools()).tools[0].name, 'tick', 'calls go on')
      })
    }

    await t.test('correct', async t => {
      const setting = await setUp(t, version, 'correct', true)
      const { server, logged, violations, gaps, guard } = setting
      await cutListener(setting, 2)
      await until(() => logged().length === 4, 'what was missed')
      server.cut('listener')
      await until(() => server.listening, 'the client is back')
      server.cut('listener')
      await until(() => server.listening, 'the client is back again')
      server.emit(1)
      await until(() => logged().length === 5, 'live')
      t.strictSame(gaps, [])
      server.cut('listener')
      server.emit(5)
      await until(() => logged().length === 9, 'what is retained')
      server.emit(1)
      await until(() => logged().length === 10, 'live')
      t.strictSame(logged(), [1, 2, 3, 4, 5, 'gap', 8, 9, 10, 11])
      t.match(gaps, [{ outcome: 'gap', signal: 'gap;cause=evicted;missed=2;replay=3', stream: '1' }])
      t.strictSame(violations, [])
      t.equal(guard.level(), 'exact')
    })
  })

  t.test(`client ${version}.x, a call`, async t => {
    const call = (client: Stock, n: number) => {
      const progress: number[] = []
      const result = client.callText('tick', { n, ms: 0 }, { onprogress: ({ progress: at }) => { progress.push(at) }, timeout: 5_000, resetTimeoutOnProgress: true })
      // Where the stream is torn down the caller waits for its own time-out, which no test waits for.
      result.catch(() => {})
      return { progress, result }
    }

    const faults: Array<[mode: NaiveMode, missed: number, without: number[], kind: string]> = [
      ['per-connection', 1, [1, 2, 4, 5], 'rebase'],
      ['replay-all', 1, [1, 2, 1, 2, 3, 4, 5], 'rebase'],
      ['clamp', 4, [1, 2, 4, 5, 6], 'gap']
    ]
    for (const [mode, missed, without, kind] of faults) {
      const n = without.at(-1)!

      await t.test(`${mode}, without the guard: the call ends well`, async t => {
        const { server, client } = await setUp(t, version, mode, false)
        const { progress, result } = call(client, n)
        await until(() => server.open === 2, 'the call runs')
        server.advance(2)
        await until(() => progress.length === 2, 'two steps')
        server.cut('calls')
        server.advance(missed)
        await until(() => server.open === 2, 'the client is back')
        server.advance(n)
        t.equal(await result, `ticked ${n}`)
        t.strictSame(progress, without)
      })

      await t.test(`${mode}, with the guard: ${kind}`, async t => {
        const { server, client, violations } = await setUp(t, version, mode, true)
        const { progress } = call(client, n)
        await until(() => server.open === 2, 'the call runs')
        server.advance(2)
        await until(() => progress.length === 2, 'two steps')
        server.cut('calls')
        server.advance(missed)
        await until(() => server.gets.length === 2, 'the client is back')
        server.advance(n)
        await until(() => client.errors.some(error => /exceeded/.test(error.message)), 'the client gives up')
        t.match(violations, [{ kind, last: '2', stream: /^request-/ }])
        t.equal(violations.length, 1)
        t.strictSame(progress, [1, 2])
        t.ok(server.listening, 'the listener is not touched')
        t.strictSame(server.gets, [undefined, '2'])
      })
    }

    await t.test('correct, cut three times, twice before any ID', async t => {
      const { server, client, violations } = await setUp(t, version, 'correct', true)
      const { progress, result } = call(client, 5)
      await until(() => server.open === 2, 'the call runs')
      server.advance(2)
      await until(() => progress.length === 2, 'two steps')
      for (let i = 0; i < 3; i++) {
        server.cut('calls')
        await until(() => server.open === 2, 'the client is back')
      }
      server.advance(6)
      t.equal(await result, 'ticked 5')
      t.strictSame(progress, [1, 2, 3, 4, 5])
      t.equal(server.calls, 1)
      t.strictSame(violations, [])
      await until(() => server.open === 1, 'the call\'s stream is closed')
    })

    await t.test('silent, cut twice before any ID: the guard remembers the cursor', async t => {
      for (const guarded of [false, true]) {
        const { server, client, violations } = await setUp(t, version, 'silent', guarded)
        const { progress, result } = call(client, 5)
        await until(() => server.open === 2, 'the call runs')
        server.advance(2)
        await until(() => progress.length === 2, 'two steps')
        server.cut('calls')
        await until(() => server.gets.length === 2 && server.open === 2, 'the client is back')
        server.cut('calls')
        await until(() => server.gets.length === 3, 'the client is back again')
        t.strictSame(server.gets, [undefined, '2', guarded ? '2' : undefined])
        server.advance(6)
        if (!guarded) continue
        t.equal(await result, 'ticked 5')
        t.strictSame(progress, [1, 2, 3, 4, 5])
        t.strictSame(violations, [])
      }
    })
  })
}
