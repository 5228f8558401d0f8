// A process that appends to one session at full speed, for test/log-redis.test.ts.
// node --import tsx test/log-writer.ts '{"url":…,"prefix":…,"sid":…,"replica":…,"count":…,"clockMs":…}'
// Says "ready", waits for a line on stdin, and ends with the offsets it was given.
import { once } from 'node:events'
import { Redis } from 'ioredis'
import { Appender } from '../lib/log/appender.ts'
import { Keys } from '../lib/log/keys.ts'
import { RETENTION, redisLog } from './helpers/logs.ts'

const { url, prefix, sid, replica, count, clockMs } = JSON.parse(process.argv[2]!) as
  { url: string, prefix: string, sid: string, replica: string, count: number, clockMs: number }

const now = Date.now
Date.now = () => now() + clockMs

const redis = new Redis(url)
await once(redis, 'ready')
let tokens = 0
const appender = new Appender({
  log: redisLog(redis, new Keys(prefix), { replica, retention: RETENTION }),
  sid,
  stream: '1',
  replica,
  nextToken: () => ++tokens,
  maxQueuedBytes: 1024 * 1024,
  onAppended: () => {},
  onOverflow: () => { throw new Error('overflow') },
  holeNotice: () => '{}'
})
process.stdout.write('ready\n')
await once(process.stdin, 'data')

const offsets: number[] = []
const send = async (i: number): Promise<void> => {
  const { offset } = await appender.append(JSON.stringify({ replica, i }))
  offsets.push(offset)
}
let i = 0
// In bursts that go in groups, and one by one: both ways of being fast.
while (i < count) {
  await Promise.all(Array.from({ length: Math.min(200, count - i) }, () => send(i++)))
  for (let n = 0; n < 200 && i < count; n++) await send(i++)
}
process.stdout.write(`${JSON.stringify(offsets)}\n`)
redis.disconnect()
process.stdin.destroy()
