// npm run bench [-- one-stream fifty-streams resume other-replica]
//
// Every scenario in one run, the load generator here and each server in a process of its own. Contestants take turns and
// medians are compared, so that ratios hold on a machine that does other things too; absolute numbers do not.
// BENCH_CPU_PROF=FOLDER writes a CPU profile of every server there.
import { randomBytes } from 'node:crypto'
import { cpus, loadavg, totalmem } from 'node:os'
import { Redis } from 'ioredis'
import type { Aim, Bench, Scenario, Table } from './bench.ts'
import { fiftyStreams } from './fifty-streams.ts'
import { oneStream } from './one-stream.ts'
import { otherReplica } from './other-replica.ts'
import { resumes } from './resume.ts'

const SCENARIOS: Record<string, Scenario> = {
  'one-stream': oneStream, 'fifty-streams': fiftyStreams, resume: resumes, 'other-replica': otherReplica
}
const LONGEST_MS = 180_000

const redisUrl = process.env.REDIS_URL
if (!redisUrl) throw new Error('REDIS_URL is not set: run `npm run bench`')
const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(SCENARIOS)
const stray = names.find(name => !Object.hasOwn(SCENARIOS, name))
if (stray !== undefined) throw new Error(`"${stray}" is not one of ${Object.keys(SCENARIOS).join(', ')}`)

const cleanUps: Array<() => unknown> = []
const redis = new Redis(redisUrl)
const bench: Bench = {
  redis, redisUrl, keyPrefix: `bench-${randomBytes(6).toString('hex')}:`, atEnd: cleanUp => { cleanUps.push(cleanUp) }
}
const tooLong = setTimeout(() => {
  console.error(`bench: not done after ${LONGEST_MS / 1000} s`)
  // What is cut off in the middle fails; that is no news then.
  process.once('uncaughtException', () => {})
  cleanUp().finally(() => process.exit(1))
}, LONGEST_MS)

const start = performance.now()
try {
  console.log(await machine())
  const tables: Table[] = []
  for (const name of names) {
    const table = await SCENARIOS[name]!(bench)
    tables.push(table)
    print(table)
    await cleanUp()
  }
  const aims = tables.flatMap(({ aims }) => aims)
  console.log('\nAims')
  for (const aim of aims) console.log(`  ${meets(aim) ? 'met   ' : 'MISSED'}  ${describe(aim)}`)
  console.log(`\nbench: ${aims.filter(meets).length} of ${aims.length} aims met in ${Math.round((performance.now() - start) / 1000)} s`)
} finally {
  clearTimeout(tooLong)
  await cleanUp()
  redis.disconnect()
}

async function machine (): Promise<string> {
  const [cpu] = cpus()
  const version = /redis_version:(\S+)/.exec(await redis.info('server'))?.[1]
  return [
    `${new Date().toISOString().slice(0, 10)}, ${cpus().length} x ${cpu?.model.trim()}, ${Math.round(totalmem() / 2 ** 30)} GB`,
    `Node ${process.version}, Redis ${version}, load average ${loadavg()[0]!.toFixed(1)} before the run, loopback`
  ].join('\n')
}

function print ({ title, columns, rows }: Table): void {
  const all = [columns, ...rows]
  const widths = columns.map((_, i) => Math.max(...all.map(row => row[i]!.length)))
  console.log(`\n${title}`)
  for (const row of all) console.log(`  ${row.map((cell, i) => i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!)).join('  ')}`)
}

function meets ({ value, rule, bound }: Aim): boolean {
  return rule === 'at least' ? value >= bound : value <= bound
}

function describe ({ what, value, rule, bound, unit }: Aim): string {
  return `${what}: ${value.toFixed(2)}${unit}, aim ${rule} ${bound}${unit}`
}

/** Also deletes what the servers wrote: sessions would stay for their TTL. */
async function cleanUp (): Promise<void> {
  for (const cleanUp of cleanUps.splice(0).reverse()) await cleanUp()
  for await (const keys of redis.scanStream({ match: `${bench.keyPrefix}*`, count: 1000 })) {
    if ((keys as string[]).length > 0) await redis.unlink(...keys as string[])
  }
}
