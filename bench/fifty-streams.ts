// npm run bench -- fifty-streams
//
// Measured: 50 tool calls at once that await each of 400 notifications, from the first POST to the end of the last
// stream; once in 50 sessions, once in a single one. Beside it 50 loops of awaited XADDs, and pipelines of 100.
// Not measured: the sessions' opening, TLS, a network, a Redis that writes to disk.
import { inRounds, median, ratio, whole, type Bench, type Table } from './bench.ts'
import { call, openSession } from './load.ts'
import { PAYLOAD } from './payload.ts'
import { startServer } from './process.ts'
import type { Kind } from './servers.ts'

const STREAMS = 50
const EVENTS = 400
const ROUNDS = 7
const PIPELINED = 100

export async function fiftyStreams (bench: Bench): Promise<Table> {
  const { redis, keyPrefix } = bench
  const plugin = await startServer(bench, 'plugin')
  const sdk = await startServer(bench, 'sdk')
  const http = await startServer(bench, 'http')
  const key = (i: number): string => `${keyPrefix}fifty-${i}`
  const rates = await inRounds(ROUNDS, {
    concurrent: async () => await timed(async i => {
      for (let n = 0; n < EVENTS; n++) await redis.xadd(key(i), '*', 'e', PAYLOAD)
    }),
    pipelined: async () => await timed(async i => {
      for (let n = 0; n < EVENTS; n += PIPELINED) {
        const pipeline = redis.pipeline()
        for (let m = 0; m < PIPELINED; m++) pipeline.xadd(key(i), '*', 'e', PAYLOAD)
        await pipeline.exec()
      }
    }),
    plugin: async () => await calls(plugin, 'plugin', STREAMS),
    pluginOneSession: async () => await calls(plugin, 'plugin', 1),
    sdk: async () => await calls(sdk, 'sdk', STREAMS),
    sdkOneSession: async () => await calls(sdk, 'sdk', 1),
    http: async () => await calls(http, 'http', 1)
  })
  await redis.del(...Array.from({ length: STREAMS }, (_, i) => key(i)))
  const row = (name: string, values: number[], sdk: number[]) =>
    [name, whole(median(values)), ratio(values, rates.concurrent).toFixed(2), ratio(values, sdk).toFixed(2)]
  return {
    title: `Append and deliver on ${STREAMS} streams at once, each event awaited`,
    columns: ['', 'events/s', 'x concurrent XADD', 'x SDK in memory'],
    rows: [
      row(`bare XADD, ${STREAMS} concurrent`, rates.concurrent, rates.sdk),
      row(`bare XADD, pipelines of ${PIPELINED}`, rates.pipelined, rates.sdk),
      row(`plugin in Redis, ${STREAMS} sessions`, rates.plugin, rates.sdk),
      row('plugin in Redis, one session', rates.pluginOneSession, rates.sdkOneSession),
      row(`SDK 2.x in memory, ${STREAMS} sessions`, rates.sdk, rates.sdk),
      row('SDK 2.x in memory, one session', rates.sdkOneSession, rates.sdkOneSession),
      row('bare node:http writer, no log', rates.http, rates.sdk)
    ],
    aims: [
      { what: '50 streams in 50 sessions, of the SDK in memory', value: ratio(rates.plugin, rates.sdk), rule: 'at least', bound: 0.5, unit: 'x' },
      { what: '50 streams in one session, of the SDK in memory', value: ratio(rates.pluginOneSession, rates.sdkOneSession), rule: 'at least', bound: 0.5, unit: 'x' }
    ]
  }
}

async function calls (url: string, kind: Kind, sessions: number): Promise<number> {
  const opened = kind === 'http'
    ? [{ url, headers: {} }]
    : await Promise.all(Array.from({ length: sessions }, async () => await openSession(url)))
  return await timed(async i => {
    const { frames } = await call(opened[i % opened.length]!, 'burst', { n: EVENTS }, i + 1)
    if (frames < EVENTS + 1) throw new Error(`${kind}: ${frames} frames of ${EVENTS + 1}`)
  })
}

/** Events per second over all streams. */
async function timed (stream: (i: number) => Promise<void>): Promise<number> {
  const start = performance.now()
  await Promise.all(Array.from({ length: STREAMS }, async (_, i) => await stream(i)))
  return STREAMS * EVENTS / (performance.now() - start) * 1000
}
