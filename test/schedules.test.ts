// Random lives of sessions against a plain model (test/helpers/schedule.ts). A failure names its seed:
//   SEED=<seed> SCHEDULES=1 node scripts/with-redis.mjs tap test/schedules.test.ts
import t from 'tap'
import { startApp, toolServer } from './helpers/plugin-app.ts'
import { seededRandom } from './helpers/random.ts'
import { connectRedis, keyPrefix, keysUnder } from './helpers/redis.ts'
import { Schedule, type Puppet } from './helpers/schedule.ts'

const SCHEDULES = Number(process.env['SCHEDULES'] ?? 200)
const STEPS = 16
const AT_ONCE = 8

const { seed: first } = seededRandom()
t.comment(`SEED=${first}`)

t.test('requests, cuts, resumes, moves, cancels and deletes at random leave every stream whole', async t => {
  const prefix = keyPrefix(t)
  const puppets = new Map<string, (puppet: Puppet) => void>()
  const server = toolServer(async call => {
    const started = puppets.get(call.args['key'])!
    return await new Promise<string>(resolve => started({ call, finish: resolve }))
  })
  const apps = await Promise.all([0, 1, 2].map(async () => await startApp(t, 'redis', { keyPrefix: prefix, server, keepAliveMs: 500 })))
  const redis = await connectRedis(t)

  let next = 0
  let deleted = 0
  const steps: Record<string, number> = {}
  const worker = async (): Promise<void> => {
    while (next < SCHEDULES) {
      const seed = first + next++
      const schedule = new Schedule(apps, puppets, seededRandom(seed))
      try {
        await schedule.run(STEPS)
        if (schedule.gone) deleted++
        for (const line of schedule.trace) steps[line.split(' ')[0]!] = (steps[line.split(' ')[0]!] ?? 0) + 1
        const left = (await keysUnder(redis, prefix)).filter(key => key.includes(schedule.sessionId))
        if (left.length > 0) throw new Error(`keys are left: ${left.join()}`)
      } catch (error) {
        t.fail(`SEED=${seed}: ${(error as Error).message}\n${schedule.trace.join('\n')}`)
      }
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, worker))
  t.comment(`${SCHEDULES} schedules, ${deleted} with a delete in the middle: ${JSON.stringify(steps)}`)
  if (SCHEDULES >= 200) {
    t.strictSame(Object.keys(steps).sort(), ['cancel', 'cut', 'delete', 'emit', 'finish', 'leave', 'move', 'request', 'resume'], 'every kind of step was taken')
  }
  t.equal(apps.reduce((sum, { app }) => sum + app.mcp.counters.gap + app.mcp.counters.future + app.mcp.counters.malformedMessages, 0), 0)
})
