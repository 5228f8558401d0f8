// Clients that go away at any moment (B102, B108), and the end of an answer that is none of that (B35, session half).
import { connect } from 'node:net'
import { once } from 'node:events'
import t from 'tap'
import { startCluster, type Host } from './helpers/hosts.ts'
import { seededRandom } from './helpers/random.ts'
import { initialize } from './helpers/sse-client.ts'
import { eventsOf } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

const random = seededRandom()
t.comment(`SEED=${random.seed}`)

/** A request over a bare socket, destroyed after `ms` or at the first byte of the answer; the head may stay incomplete. */
async function abort (url: string, head: string, body: string, { part, ms }: { part: number, ms: number }): Promise<void> {
  const { hostname, port } = new URL(url)
  const socket = connect(Number(port), hostname)
  socket.on('error', () => {})
  await once(socket, 'connect')
  const text = `${head}\r\ncontent-length: ${Buffer.byteLength(body)}\r\nconnection: close\r\n\r\n${body}`
  socket.write(text.slice(0, Math.ceil(text.length * part)))
  const timer = setTimeout(() => socket.resetAndDestroy(), ms)
  socket.once('data', () => { if (ms > 20) socket.resetAndDestroy() })
  await once(socket, 'close')
  clearTimeout(timer)
}

t.test('B108: 300 clients that vanish at random moments are no error of anybody', async t => {
  const cluster = await startCluster(t, 2)
  const [a, b] = cluster.hosts as [Host, Host]
  const session = await initialize(a.url)
  const listener = await session.listen()
  await (await session.call('emit', { n: 50, bytes: 500 })).response()
  const events = eventsOf(await listener.stream.until(({ message }) => message?.params?.data?.i === 50))
  listener.cut()
  const common = `host: x\r\nmcp-session-id: ${session.sessionId}\r\nmcp-protocol-version: 2025-11-25\r\naccept: application/json, text/event-stream`
  let n = 0
  const vanish = async (): Promise<void> => {
    while (n++ < 300) {
      const url = [a, b][random.below(2)]!.url
      const part = random.between(0, 1) < 0.2 ? random.between(0.1, 1) : 1
      const ms = random.between(0, 60)
      const kind = random.below(4)
      if (kind === 0) await abort(url, `GET /mcp HTTP/1.1\r\n${common}`, '', { part, ms })
      if (kind === 1) await abort(url, `GET /mcp HTTP/1.1\r\n${common}\r\nlast-event-id: ${events[random.below(events.length)]!.id}`, '', { part, ms })
      if (kind < 2) continue
      const [name, args] = kind === 2 ? ['tick', { n: 5, ms: 5, bytes: 20_000 }] : ['fail', {}]
      const body = JSON.stringify({ jsonrpc: '2.0', id: `v${n}`, method: 'tools/call', params: { name, arguments: args } })
      await abort(url, `POST /mcp HTTP/1.1\r\n${common}\r\ncontent-type: application/json`, body, { part, ms })
    }
  }
  await Promise.all([1, 2, 3, 4, 5].map(vanish))
  for (const host of [a, b]) {
    await until(async () => (await host.stats()).connections === 0, 'the connections to be noticed as gone', 20_000)
    const { uncaught, counters } = await host.stats()
    t.strictSame(uncaught, [], 'nothing was uncaught')
    t.equal(counters.dropped, 0, 'no message was dropped')
    const errors = host.stderr.filter(line => JSON.parse(line).level >= 50)
    t.strictSame(errors, [], 'a hang-up is no error in the log')
  }
  t.match(await (await session.at(b.url).call('echo', { text: 'up' })).response(), { result: { content: [{ text: 'up' }] } })
})

t.test('B108: a tool that throws after it has sent something answers on its stream', async t => {
  const cluster = await startCluster(t, 1)
  const session = await initialize(cluster.url)
  const call = await session.call('fail')
  const events = eventsOf(await call.stream.rest())
  t.equal(events.length, 3, 'opening, message, answer')
  t.match(events[1]!.message.params.data, 'before the failure')
  t.match(events[2]!.message, { id: call.id, error: { message: /failed on purpose/ } })
  t.strictSame((await cluster.hosts[0]!.stats()).uncaught, [])
})

for (const [name, send] of [
  ['a JSON body', async (session: any) => await session.call('work', { key: 'k', ms: 1500 })],
  ['a GET', async (session: any) => await session.listen()]
] as const) {
  t.test(`B102: a cut of ${name} is noticed soon, once, and by nothing but the cut`, async t => {
    const cluster = await startCluster(t, 1, { plugin: { keepAliveMs: 60_000, retention: { windowMs: 300_000 } } })
    const [host] = cluster.hosts as [Host]
    const session = await initialize(host.url)
    const open = async (): Promise<number> => (await host.stats()).connections
    const answer = await send(session)
    await until(async () => await open() === 1, 'the connection')
    const at = performance.now()
    answer.cut()
    await until(async () => await open() === 0, 'the cut to be noticed', 10_000)
    t.comment(`noticed within ${Math.round(performance.now() - at)} ms`)
    t.pass('without waiting for a keep-alive')
  })
}

t.test('B35, B102: neither a cut nor a normal end cancels a call of a session version', async t => {
  const cluster = await startCluster(t, 1)
  const [host] = cluster.hosts as [Host]
  const session = await initialize(host.url)
  const cut = await session.call('work', { key: 'cut', ms: 700 })
  cut.cut()
  await (await session.call('work', { key: 'normal', ms: 50 })).response()
  await until(async () => (await host.happenings()).filter(({ what }) => what === 'ended').length === 2, 'both handlers to end')
  t.notOk((await host.happenings()).some(({ what }) => what === 'aborted'))
})
