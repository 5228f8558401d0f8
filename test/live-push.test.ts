// What is appended on one replica reaches the connection on another at once and whole, whatever its size.
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { backends, startPair, toolServer } from './helpers/plugin-app.ts'
import { initialize } from './helpers/sse-client.ts'
import { dataOf, eventsOf, offsets } from './helpers/stream-events.ts'
import { until } from './helpers/wait.ts'

// The tick heals what a hint did not bring: here it comes later than any test waits.
const KEEP_ALIVE_MS = 60_000

for (const backend of backends) {
  t.test(`a stream resumed while its request runs is pushed, not polled (${backend})`, async t => {
    let resumed = (): void => {}
    const gate = new Promise<void>(resolve => { resumed = resolve })
    const [a, b] = await startPair(t, backend, {
      keepAliveMs: KEEP_ALIVE_MS,
      server: toolServer(async ({ emit }) => {
        await gate
        for (let i = 1; i <= 300; i++) {
          await emit({ i, at: performance.now() })
          await sleep(2)
        }
        return 'result'
      })
    })
    const session = await initialize(a.url)
    const call = await session.call('any')
    const { id } = await call.stream.next()
    call.cut()
    const { stream } = await session.at(b.url).resume(id!)
    await stream.next()
    resumed()
    const frames = await stream.rest(30_000)
    t.strictSame(dataOf(eventsOf(frames)).map(({ i }) => i), offsets(1, 300))
    // From before the append to the arrival at the client; both replicas and the client share this process.
    const latencies = frames.flatMap(({ message, at }) => message?.params ? [at - message.params.data.at] : []).sort((x, y) => x - y)
    const [p50, p99] = [latencies[149]!, latencies[296]!]
    t.comment(`append to socket: p50 ${p50.toFixed(1)} ms, p99 ${p99.toFixed(1)} ms`)
    t.ok(p99 < KEEP_ALIVE_MS / 30, 'far sooner than any tick')
  })

  t.test(`payloads around and above what a hint carries (${backend})`, async t => {
    const sizes = [...offsets(16_200, 16_400).filter(size => size % 4 === 0), 100_000, 10, 1_000_000, 20, 16_384, 30]
    let resumed = (): void => {}
    const gate = new Promise<void>(resolve => { resumed = resolve })
    let caughtUp = (): void => {}
    const lastGate = new Promise<void>(resolve => { caughtUp = resolve })
    const [a, b] = await startPair(t, backend, {
      keepAliveMs: KEEP_ALIVE_MS,
      retention: { maxBytes: 64 * 1024 * 1024 },
      server: toolServer(async ({ emit }) => {
        await gate
        // One by one, each in an append and a hint of its own; then all at once.
        for (const [i, size] of sizes.entries()) await emit({ i, text: 'é'.repeat(size / 2) })
        await Promise.all(sizes.map(async (size, i) => await emit({ i, text: 'é'.repeat(size / 2) })))
        // Alone, when no read is under way that would find it anyhow.
        await lastGate
        return 'y'.repeat(6_000_000)
      })
    })
    const session = await initialize(a.url)
    const call = await session.call('any')
    const { id } = await call.stream.next()
    call.cut()
    const live = await session.at(b.url).resume(id!)
    await live.stream.next()
    resumed()
    const { frames } = live.stream
    await until(() => frames.length === 1 + 2 * sizes.length, 'all but the result has come', 30_000)
    caughtUp()
    const events = eventsOf(await live.stream.rest(30_000))
    t.strictSame(dataOf(events).map(({ i, text }) => [i, text.length * 2]), [...sizes, ...sizes].map((size, i) => [i % sizes.length, size]))
    t.equal(events.at(-1)!.message.result.content[0].text.length, 6_000_000)
    const replayed = await session.resume(id!)
    t.strictSame(eventsOf(await replayed.stream.rest(30_000)), events, 'the same from the log')
  })

  t.test(`more than the sockets hold, for a reader that pauses (${backend})`, async t => {
    const n = 250
    const text = 'x'.repeat(64 * 1024)
    let sent = 0
    let go = (): void => {}
    const gate = new Promise<void>(resolve => { go = resolve })
    const [a, b] = await startPair(t, backend, {
      keepAliveMs: KEEP_ALIVE_MS,
      retention: { maxBytes: 64 * 1024 * 1024 },
      server: toolServer(async ({ emit }) => {
        await gate
        while (sent < n) await emit({ i: ++sent, text })
        return 'result'
      })
    })
    const session = await initialize(a.url)
    const call = await session.call('any')
    const { id } = await call.stream.next()
    call.cut()
    const { stream } = await session.at(b.url).resume(id!)
    await stream.next()
    stream.pause()
    go()
    await until(() => sent === n, 'all is logged although nobody reads', 30_000)
    t.ok(stream.frames.length < n / 2, 'the reader is behind')
    stream.resume()
    const events = eventsOf(await stream.rest(30_000))
    t.strictSame(dataOf(events).map(({ i }) => i), offsets(1, n))
    t.ok(dataOf(events).every(data => data.text === text))
    t.match(events.at(-1)!.message, { id: call.id, result: {} })
    t.equal(new Set(events.map(({ id }) => id)).size, n + 1)
  })
}
