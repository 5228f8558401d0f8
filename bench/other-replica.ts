// npm run bench -- other-replica
//
// Measured: from the moment a handler hands a notification over to its arrival at a client whose stream is on another
// replica, 1,000 times at 2 ms; beside it the same with the stream on the handler's own replica. Both processes read
// one monotonic clock.
// Not measured: TLS, a network, a Redis that writes to disk.
import { percentile, type Bench, type Table } from './bench.ts'
import { call, listen, openSession } from './load.ts'
import { startServer } from './process.ts'

const EVENTS = 1000
const APART_MS = 2

export async function otherReplica (bench: Bench): Promise<Table> {
  const [one, other] = await Promise.all([startServer(bench, 'plugin'), startServer(bench, 'plugin')])
  const own = await latencies(one, one)
  const across = await latencies(one, other)
  const row = (name: string, values: number[]) => [name, ...[50, 99, 100].map(p => percentile(values, p).toFixed(2))]
  return {
    title: 'From the handler to the client',
    columns: ['', 'p50 ms', 'p99 ms', 'max ms'],
    rows: [row('stream on the same replica', own), row('stream on another replica', across)],
    aims: [{ what: 'to a stream on another replica, p99', value: percentile(across, 99), rule: 'at most', bound: 25, unit: ' ms' }]
  }
}

async function latencies (producer: string, carrier: string): Promise<number[]> {
  const session = await openSession(producer)
  const times: number[] = []
  const stop = await listen({ ...session, url: carrier }, text => {
    const now = process.hrtime.bigint()
    for (const [, sent] of text.matchAll(/"data":"(\d+)"/g)) times.push(Number(now - BigInt(sent!)) / 1e6)
  })
  await call(session, 'emit', { n: 50, ms: APART_MS })
  times.length = 0
  await call(session, 'emit', { n: EVENTS, ms: APART_MS })
  stop()
  if (times.length < EVENTS * 0.99) throw new Error(`${times.length} of ${EVENTS} came`)
  return times
}
