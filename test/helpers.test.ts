// The helpers that misbehave on purpose have to misbehave exactly as asked.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import t from 'tap'
import { startBalancer } from './helpers/balancer.ts'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { connectRedis, keyPrefix, keysUnder, startRedis } from './helpers/redis.ts'
import { get, post } from './helpers/sse-client.ts'
import type { Owner } from './helpers/teardown.ts'
import { until } from './helpers/wait.ts'

interface Origin { url: string, streams: ServerResponse[] }

// Answers GET with an event stream that the test writes, anything else with the body it got.
async function startOrigin (t: Owner, name: string): Promise<Origin> {
  const streams: ServerResponse[] = []
  const server = createServer((request, response) => {
    response.setHeader('x-origin', name)
    if (request.method === 'GET') {
      response.writeHead(200, { 'content-type': 'text/event-stream' }).write(': open\n')
      streams.push(response)
    } else {
      request.pipe(response)
    }
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`, streams }
}

t.test('sse reader: ids, empty data, retry, comments and text cut between bytes', async t => {
  const origin = await startOrigin(t, 'a')
  const { stream } = await get(origin.url)
  const [response] = origin.streams
  response!.write('id: 1\ndata: \n\nid: 2\n\ndata: {"a":1}\n\n: ka\nid: 3\nretry: 2000\ndata: \n\n')
  const frames = [await stream.next(), await stream.next(), await stream.next(), await stream.next()]
  t.match(frames, [
    { id: '1', data: '', retry: undefined },
    { id: '2', data: undefined },
    { id: undefined, data: '{"a":1}', message: { a: 1 } },
    { id: '3', data: '', retry: 2000 }
  ])
  t.strictSame(stream.comments, ['open', 'ka'])

  const bytes = Buffer.from('data: "é"\n\n')
  response!.write(bytes.subarray(0, 8))
  await until(() => stream.raw.length > 80, 'the half letter is there')
  response!.end(bytes.subarray(8))
  t.equal((await stream.next()).message, 'é')
  t.equal(await stream.ended, 'end')
  await t.rejects(stream.next(), /the stream ended/)
})

t.test('balancer: strict turns, one per request; a dead target is passed over', async t => {
  const [a, b] = [await startOrigin(t, 'a'), await startOrigin(t, 'b')]
  const balancer = await startBalancer(t, [a.url, b.url])
  const origins = []
  for (let i = 0; i < 4; i++) {
    const answer = await post(balancer.url, { i })
    t.same(answer.json(), { i })
    origins.push(answer.headers['x-origin'])
  }
  t.strictSame(origins, ['a', 'b', 'a', 'b'])
  t.match(balancer.requests[0], { method: 'POST', upstream: a.url, status: 200, isOpen: false })

  balancer.targets = ['http://127.0.0.1:1/mcp', b.url]
  t.equal((await post(balancer.url, {})).headers['x-origin'], 'b')
  balancer.targets = ['http://127.0.0.1:1/mcp']
  t.equal((await post(balancer.url, {})).status, 502)
})

t.test('balancer: cut resets the selected streams only, on both sides', async t => {
  const origin = await startOrigin(t, 'a')
  const balancer = await startBalancer(t, [origin.url])
  const kept = await get(balancer.url)
  const lost = await get(balancer.url, { 'last-event-id': '7' })
  await until(() => origin.streams.length === 2, 'both streams are open')
  t.equal(balancer.cut(({ headers }) => headers['last-event-id'] === '7'), 1)
  t.equal(await lost.stream.ended, 'cut')
  await until(() => origin.streams[1]!.destroyed, 'the origin sees the end')
  origin.streams[0]!.write('data: 1\n\n')
  t.match(await kept.stream.next(), { data: '1' })
})

t.test('balancer: an origin that dies in mid-stream ends the stream without good order', async t => {
  const origin = await startOrigin(t, 'a')
  const balancer = await startBalancer(t, [origin.url])
  const { stream } = await get(balancer.url)
  origin.streams[0]!.destroy()
  t.equal(await stream.ended, 'cut')
})

t.test('balancer: a hole passes nothing and tells nobody, until it heals', async t => {
  const origin = await startOrigin(t, 'a')
  const balancer = await startBalancer(t, [origin.url])
  const { stream, cut } = await get(balancer.url)
  const other = await get(balancer.url)
  t.equal(balancer.hole(({ path }) => path === '/mcp'), 2)
  const [first, second] = origin.streams
  first!.write('data: 1\n\n')
  second!.write('data: 2\n\n')
  cut()
  // Something that comes through the same process afterwards shows that the hole had its chance.
  t.equal((await post(balancer.url, {})).status, 200)
  t.equal(other.stream.frames.length, 0)
  t.equal(first!.destroyed, false, 'the origin is not told that its client has gone')
  balancer.heal()
  t.match(await other.stream.next(), { data: '2' })
  await until(() => first!.destroyed, 'the origin learns it afterwards')
  t.equal(await stream.ended, 'cut')
})

t.test('balancer: the idle timer cuts a silent stream and spares a speaking one', async t => {
  const origin = await startOrigin(t, 'a')
  const balancer = await startBalancer(t, [origin.url], { idleMs: 300 })
  const silent = await get(balancer.url)
  const speaking = await get(balancer.url)
  await until(() => origin.streams.length === 2, 'both streams are open')
  const timer = setInterval(() => origin.streams[1]!.write(': ka\n'), 50)
  t.teardown(() => clearInterval(timer))
  t.equal(await silent.stream.ended, 'cut')
  t.equal(speaking.stream.isOpen, true)
  clearInterval(timer)
  t.equal(await speaking.stream.ended, 'cut')
})

t.test('fault proxy', async t => {
  const server = await startRedis(t)
  const proxy = await startFaultProxy(t, server.url)
  const direct = await connectRedis(t, server.url)
  const redis = await connectRedis(t, proxy.url)
  const subscriber = await connectRedis(t, proxy.url)
  await subscriber.subscribe('news')

  await t.test('delays replies in order and counts commands', async t => {
    proxy.delay({ min: 20, max: 60, seed: 1 })
    const before = performance.now()
    const replies = await Promise.all([redis.incr('n'), redis.incr('n'), redis.incr('n')])
    t.strictSame(replies, [1, 2, 3])
    t.ok(performance.now() - before >= 20)
    proxy.restore()
    t.equal(proxy.count('incr'), 3)
    t.equal(await redis.incr('n'), 4)
  })

  await t.test('stalls the subscriber only, and lets go afterwards', async t => {
    const heard: string[] = []
    subscriber.on('message', (_channel, text) => { heard.push(text) })
    proxy.stall(({ isSubscriber }) => isSubscriber)
    await direct.publish('news', 'one')
    t.equal(await redis.incr('n'), 5, 'the other connection works')
    t.strictSame(heard, [])
    proxy.restore()
    await until(() => heard.length === 1, 'the news arrives')
  })

  await t.test('loses the reply to a command that was executed', async t => {
    proxy.loseReplyTo(({ name, args }) => name === 'INCR' && args[0] === 'lost')
    // The default client sends the command again after the reconnect: executed twice.
    t.equal(await redis.incr('lost'), 2)
    t.equal(proxy.count('incr'), 7)
  })

  await t.test('drops replies', async t => {
    proxy.dropReplies(({ isSubscriber }) => !isSubscriber)
    const pending = redis.incr('dropped')
    await until(async () => await direct.get('dropped') === '1', 'the command has arrived')
    proxy.restore()
    t.equal(await pending, 2, 'sent again after the reset')
  })

  await t.test('refuses and resets', async t => {
    proxy.refuse()
    t.ok(proxy.reset() >= 2)
    await until(() => redis.status === 'reconnecting', 'the client tries again')
    proxy.restore()
    t.equal(await redis.ping(), 'PONG')
  })
})

t.test('private redis: restarts on its port without its data', async t => {
  const server = await startRedis(t)
  const redis = await connectRedis(t, server.url)
  await redis.set('k', 'v')
  const { pid } = server
  await server.kill9()
  await server.restart()
  t.not(server.pid, pid)
  t.equal(await redis.get('k'), null)
})

t.test('key prefix: its keys go, its neighbours stay', async t => {
  const redis = await connectRedis(t)
  let prefix = ''
  const neighbour = keyPrefix(t)
  await redis.set(`${neighbour}k`, 1)
  await t.test('a test', async t => {
    prefix = keyPrefix(t)
    await redis.set(`${prefix}{s}:log`, 1)
    t.strictSame(await keysUnder(redis, prefix), [`${prefix}{s}:log`])
  })
  t.strictSame(await keysUnder(redis, prefix), [])
  t.strictSame(await keysUnder(redis, neighbour), [`${neighbour}k`])
})
