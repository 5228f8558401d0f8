// npm run bench -- resume
//
// Measured: from a GET with Last-Event-ID, on a new connection, to the end of the stream at the client, for a finished
// call of which 10 to 10,000 events were missed. The floor is one XRANGE and one write by a bare node:http server.
// Not measured: the reconnect's delay, TLS, a network, a Redis that writes to disk.
import { inRounds, percentile, ratio, whole, type Bench, type Table } from './bench.ts'
import { call, openSession, resume, type Session } from './load.ts'
import { PAYLOAD } from './payload.ts'
import { startServer } from './process.ts'

const CASES = [{ missed: 10, rounds: 100 }, { missed: 100, rounds: 100 }, { missed: 1000, rounds: 40 }, { missed: 10_000, rounds: 15 }]

export async function resumes (bench: Bench): Promise<Table> {
  const plugin = await startServer(bench, 'plugin')
  const sdk = await startServer(bench, 'sdk')
  const floor = await startServer(bench, 'xrange')
  const rows: string[][] = []
  const aims: Table['aims'][number][] = []
  for (const { missed, rounds } of CASES) {
    const key = await fill(bench, missed)
    const times = await inRounds(rounds, {
      floor: resuming({ url: `${floor}?key=${key}`, headers: {} }, '0-1', missed),
      plugin: await cut(plugin, missed),
      sdk: await cut(sdk, missed)
    })
    const row = (name: string, values: number[]) =>
      [name, ...[50, 99].map(p => percentile(values, p).toFixed(2)), ratio(values, times.floor).toFixed(2)]
    rows.push(row(`${whole(missed)} events: bare XRANGE and write`, times.floor), row('  plugin, log in Redis', times.plugin),
      row('  SDK 2.x transport, store in memory', times.sdk))
    aims.push({ what: `resume of ${whole(missed)} events, of the floor`, value: ratio(times.plugin, times.floor), rule: 'at most', bound: 2, unit: 'x' })
  }
  return { title: 'Resume of a finished call', columns: ['', 'p50 ms', 'p99 ms', 'x floor'], rows, aims }
}

/** A finished call, and the resume from its first event: the call's response is the last event missed. */
async function cut (url: string, missed: number): Promise<() => Promise<number>> {
  const session = await openSession(url)
  const { firstId } = await call(session, 'burst', { n: missed - 1 })
  return resuming(session, firstId, missed)
}

function resuming (session: Session, cursor: string, missed: number): () => Promise<number> {
  return async () => {
    const { frames, ms } = await resume(session, cursor)
    // The plugin repeats the cursor first.
    if (frames !== missed && frames !== missed + 1) throw new Error(`${frames} frames for ${missed} missed events`)
    return ms
  }
}

async function fill ({ redis, keyPrefix, atEnd }: Bench, missed: number): Promise<string> {
  const key = `${keyPrefix}resume-${missed}`
  atEnd(async () => await redis.del(key))
  const pipeline = redis.pipeline()
  for (let i = 0; i <= missed; i++) pipeline.xadd(key, `0-${i + 1}`, 'e', PAYLOAD)
  await pipeline.exec()
  return key
}
