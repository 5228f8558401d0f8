// The host has hooks of its own, and takes its time in them when the plugin has done its part of closing.
import type { AddressInfo } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import Fastify from 'fastify'
import t from 'tap'
import mcpResume from '../lib/index.ts'
import { toolServer } from './helpers/plugin-app.ts'
import { connectRedis, keyPrefix } from './helpers/redis.ts'
import { initialize } from './helpers/sse-client.ts'
import { until, within } from './helpers/wait.ts'

t.test('a request that arrives when the grace is over does not hold the app', async t => {
  const started: string[] = []
  const aborts: string[] = []
  const app = Fastify({ return503OnClosing: false })
  t.teardown(() => app.close())
  await app.register(mcpResume, {
    redis: await connectRedis(t),
    keyPrefix: keyPrefix(t),
    graceMs: 200,
    server: toolServer(async ({ name, signal }) => {
      started.push(name)
      await sleep(60_000, undefined, { signal }).catch(() => aborts.push(name))
      return name
    })
  })
  let hostHook = false
  app.addHook('preClose', async () => {
    hostHook = true
    await sleep(1500)
  })
  await app.listen({ host: '127.0.0.1', port: 0 })
  const session = await initialize(`http://127.0.0.1:${(app.server.address() as AddressInfo).port}/mcp`)
  const running = await session.call('running')
  const plain = session.call('plain', {}, { headers: { accept: 'application/json' } })
  await until(() => started.length === 2, 'both calls run')
  const closing = app.close()
  await until(() => hostHook, 'the plugin has done its part')
  const goodbye = (await running.stream.rest()).at(-1)!
  t.ok(goodbye.retry! >= 2000, 'the call that ran was left with a hint')
  t.match(await (await plain).response(), { result: { isError: true } }, 'the one answered as plain JSON is told that it is lost')

  const headers = { accept: 'application/json' }
  for (const late of [await session.call('late'), await session.call('late', {}, { headers })]) {
    t.match(await late.response(), { id: late.id, error: { code: -31004, message: /nothing was started/ } }, 'a late call is told so at once')
  }
  t.match(await (await session.request('ping')).response(), { result: {} }, 'what is quick is served')
  const listener = await session.listen()
  t.ok((await listener.stream.rest(5000)).at(-1)!.retry! >= 2000, 'a late listener is left with a hint')
  const at = performance.now()
  await within(closing, 'the app to close', 15_000)
  t.comment(`closed ${Math.round(performance.now() - at)} ms after`)
  t.strictSame(aborts.sort(), ['plain', 'running'], 'their handlers are aborted')
  t.strictSame(started.sort(), ['plain', 'running'], 'and no other was started')
})
