// npm run bench -- one-stream
//
// Measured: one tool call that awaits each of 2,000 notifications, from the POST to the end of its stream at the client;
// beside it the same number of awaited XADDs of the same payload on one connection.
// Not measured: the session's opening, TLS, a network, a Redis that writes to disk.
import { inRounds, median, ratio, whole, type Bench, type Table } from './bench.ts'
import { call, openSession } from './load.ts'
import { PAYLOAD } from './payload.ts'
import { startServer } from './process.ts'
import type { Kind } from './servers.ts'

const EVENTS = 2000
const ROUNDS = 9

export async function oneStream (bench: Bench): Promise<Table> {
  const { redis, keyPrefix } = bench
  const contestant = async (kind: Kind) => {
    const url = await startServer(bench, kind)
    return async () => {
      const session = kind === 'http' ? { url, headers: {} } : await openSession(url)
      const { frames, ms } = await call(session, 'burst', { n: EVENTS })
      if (frames < EVENTS + 1) throw new Error(`${kind}: ${frames} frames of ${EVENTS + 1}`)
      return EVENTS / ms * 1000
    }
  }
  const key = `${keyPrefix}one-stream`
  const rates = await inRounds(ROUNDS, {
    xadd: async () => {
      const start = performance.now()
      for (let i = 0; i < EVENTS; i++) await redis.xadd(key, '*', 'e', PAYLOAD)
      const ms = performance.now() - start
      await redis.del(key)
      return EVENTS / ms * 1000
    },
    plugin: await contestant('plugin'),
    inProcess: await contestant('plugin-in-process'),
    sdk: await contestant('sdk'),
    http: await contestant('http')
  })
  const row = (name: string, values: number[]) => [name, whole(median(values)), ratio(values, rates.xadd).toFixed(2)]
  return {
    title: 'Append and deliver on one stream, each event awaited',
    columns: ['', 'events/s', 'x awaited XADD'],
    rows: [
      row('bare awaited XADD, no delivery', rates.xadd),
      row('plugin, log in Redis', rates.plugin),
      row('plugin, log in the process', rates.inProcess),
      row('SDK 2.x transport, store in memory', rates.sdk),
      row('bare node:http writer, no log', rates.http)
    ],
    aims: [{ what: 'one stream, of the awaited XADD', value: ratio(rates.plugin, rates.xadd), rule: 'at least', bound: 0.5, unit: 'x' }]
  }
}
