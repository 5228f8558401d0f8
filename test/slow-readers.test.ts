// B32: a socket that pushes back is a slow client, not a gone one; and what it takes is written once.
import type { Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { backends, startApp, toolServer } from './helpers/plugin-app.ts'
import type { AppOptions, Backend, PluginApp } from './helpers/plugin-app.ts'
import { keyPrefix, redisUrl } from './helpers/redis.ts'
import { startReplica } from './helpers/replica.ts'
import { initialize } from './helpers/sse-client.ts'
import type { SseReader } from './helpers/sse-client.ts'
import { cursorOf, eventsOf, offsets } from './helpers/stream-events.ts'
import type { Owner } from './helpers/teardown.ts'
import { until } from './helpers/wait.ts'

// 16 MB: more than the kernel takes for a connection on loopback, so that the server itself feels the reader.
const N = 1300
const TICKS = { n: N, ms: 0, bytes: 12_000 }
const ROOM = { maxBytes: 64 * 1024 * 1024 }
/** What may be unsent: 64 KiB, and the page of 256 KiB that went over it. */
const MOST_UNSENT = 512 * 1024

interface Watched extends PluginApp {
  /** Bytes that the fullest connection holds in this process now. */
  unsent (): number
  /** The most ever seen. */
  most (): number
}

async function start (t: Owner, backend: Backend, options: AppOptions = {}): Promise<Watched> {
  const sockets = new Set<Socket>()
  const host = await startApp(t, backend, {
    retention: ROOM,
    ...options,
    fastify: { forceCloseConnections: true },
    before: app => app.server.on('connection', socket => {
      sockets.add(socket)
      socket.once('close', () => sockets.delete(socket))
    })
  })
  let most = 0
  const unsent = (): number => {
    const now = Math.max(0, ...[...sockets].map(socket => socket.writableLength))
    most = Math.max(most, now)
    return now
  }
  const timer = setInterval(unsent, 1)
  t.teardown(() => clearInterval(timer))
  return { ...host, unsent, most: () => most }
}

/** Takes some, waits until the server feels it, takes some more, to the end. */
async function readSlowly (stream: SseReader, isFull: () => boolean): Promise<void> {
  while (stream.isOpen) {
    const before = stream.frames.length
    stream.resume()
    await until(() => !stream.isOpen || stream.frames.length >= before + 20, 'some frames', 30_000)
    stream.pause()
    // Near the end there is not enough left to fill anything.
    if (before < N / 4) await until(isFull, 'the server feels the slow reader', 30_000)
  }
}

for (const backend of backends) {
  t.test(backend, async t => {
    await t.test('B32: a slow reader gets every event once, and costs no more than a page of memory', async t => {
      const host = await start(t, backend)
      const session = await initialize(host.url)
      const { stream, id } = await session.call('tick', TICKS)
      stream.pause()
      await until(() => host.unsent() >= 64 * 1024, 'the server feels the stalled reader', 30_000)
      await readSlowly(stream, () => host.unsent() >= 64 * 1024)
      t.equal(await stream.ended, 'end')
      const events = eventsOf(stream.frames)
      t.strictSame(events.map(({ offset }) => offset), offsets(0, N + 1), 'nothing lost, nothing twice, in order')
      t.match(events.at(-1)!.message, { id, result: { content: [{ text: `ticked ${N}` }] } })
      t.ok(host.most() <= MOST_UNSENT, `${host.most()} bytes unsent at most`)
    })

    await t.test('B32: a peer that takes nothing is dropped after the bound, its events are not', async t => {
      const host = await start(t, backend, { stallMs: 1000, keepAliveMs: 100 })
      const session = await initialize(host.url)
      const other = await session.listen()
      const { stream } = await session.call('tick', TICKS)
      await stream.until(({ message }) => message !== undefined)
      stream.pause()
      await until(() => host.unsent() >= 64 * 1024, 'the server feels the stalled reader', 30_000)

      // Meanwhile one stuck stream slows no other.
      await session.call('emit', { n: 1, ms: 0 })
      await other.stream.until(({ message }) => message?.params?.data?.i === 1)
      t.match(await (await session.call('echo', { text: 'x' })).response(), { result: { content: [{ text: 'x' }] } })

      await until(() => host.app.mcp.load.connections === 1, 'the stalled connection is dropped', 30_000)
      t.equal(other.stream.isOpen, true, 'an idle listener takes nothing either, and stays')
      stream.resume()
      t.equal(await stream.ended, 'cut')
      const taken = stream.frames.slice()
      const resumed = await session.resume(cursorOf(taken)!)
      t.match(resumed.headers['mcp-resume'], /^resumed;cause=replay;/)
      const events = eventsOf([...taken, ...await resumed.stream.rest(30_000)])
      t.strictSame(events.map(({ offset }) => offset), offsets(0, N + 1))
      t.ok(host.most() <= MOST_UNSENT, `${host.most()} bytes unsent at most`)
    })

    await t.test('what is evicted from under a slow reader is announced on its next resume, with its size', async t => {
      let isOver = false
      const host = await start(t, backend, {
        retention: { maxEvents: 100 },
        server: toolServer(async ({ emit }) => {
          for (let i = 0; i < N; i++) await emit('x'.repeat(TICKS.bytes))
          isOver = true
          return 'over'
        })
      })
      const session = await initialize(host.url)
      const call = await session.call('any')
      call.stream.pause()
      await until(() => isOver, 'the call is over', 30_000)
      call.stream.resume()
      t.equal(await call.stream.ended, 'end')
      t.match(call.stream.frames.at(-1), { data: '', retry: Number }, 'ended with a cursor and a hint')
      const taken = eventsOf(call.stream.frames)
      t.strictSame(taken.map(({ offset }) => offset), offsets(0, taken.length - 1), 'whole until then')

      const resumed = await session.resume(call.stream.frames.at(-1)!.id!)
      const missed = Number(/^gap;cause=evicted;missed=(\d+);/.exec(String(resumed.headers['mcp-resume']))?.[1])
      const rest = eventsOf(await resumed.stream.rest())
      t.equal(rest[0]!.offset - taken.at(-1)!.offset - 1, missed)
      t.strictSame(rest.map(({ offset }) => offset), offsets(taken.length + missed, N + 1))
      t.match(rest.at(-1)!.message, { id: call.id })
    })
  })
}

t.test('B32: a slow reader on another replica than the producer gets every event once', async t => {
  const env = { REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t), MAX_BYTES: ROOM.maxBytes }
  const [a, b] = await Promise.all([startReplica(t, env), startReplica(t, env)])
  const session = await initialize(a.url)
  const call = await session.call('tick', TICKS)
  const { id: cursor } = await call.stream.next()
  call.cut()
  const { stream } = await session.at(b.url).resume(cursor!)
  while (stream.isOpen) {
    const before = stream.frames.length
    stream.resume()
    await until(() => !stream.isOpen || stream.frames.length >= before + 150, 'some frames', 30_000)
    stream.pause()
    await sleep(20)
  }
  t.strictSame(eventsOf(stream.frames).map(({ offset }) => offset), offsets(1, N + 1))
})
