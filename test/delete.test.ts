// DELETE ends a session everywhere and leaves nothing of it; only its owner can.
import type { Redis } from 'ioredis'
import t, { type Test } from 'tap'
import { startFaultProxy } from './helpers/fault-proxy.ts'
import { startCluster, type Host } from './helpers/hosts.ts'
import { keysUnder, redisUrl } from './helpers/redis.ts'
import { del, get, initialize, post, type Session } from './helpers/sse-client.ts'
import { cursorOf } from './helpers/stream-events.ts'
import { until, within } from './helpers/wait.ts'

// Looks after its sessions every 2 s, so that what such a look brings back would show.
const cluster = await startCluster(t, 2, { plugin: { sessionTtlMs: 6000, keepAliveMs: 4000, retention: { windowMs: 60_000 } } })
const [a, b] = cluster.hosts as [Host, Host]

const NOT_FOUND = '{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}'

async function happened (host: Host, key: string): Promise<string[]> {
  return (await host.happenings()).filter(happening => happening.key === key).map(({ what }) => what)
}

/** Where the session's ID is found in Redis: in names of keys, and in what the sets hold. */
async function traces (redis: Redis, prefix: string, sessionId: string): Promise<string[]> {
  const found: string[] = []
  for (const key of await keysUnder(redis, prefix)) {
    if (key.includes(sessionId)) found.push(key)
    else if (await redis.type(key) === 'zset' && await redis.zscore(key, sessionId) !== null) found.push(`in ${key}`)
  }
  return found
}

async function isGone (t: Pick<Test, 'equal'>, session: Session, cursor: string): Promise<void> {
  for (const { url } of [a, b]) {
    const there = session.at(url)
    for (const answer of [await there.request('tools/list'), await there.call('echo', { text: 'no' }), await there.listen(), await there.resume(cursor), await there.del(), await there.notify('notifications/x')]) {
      t.equal(answer.status, 404)
      t.equal(answer.body, NOT_FOUND)
    }
  }
}

t.test('B44: DELETE on one replica ends streams and handlers on the other, and nothing recreates the session', async t => {
  const took: number[] = []
  const ended: string[] = []
  for (const key of ['b44 one', 'b44 two', 'b44 three']) {
    const session = await initialize(a.url, { headers: { 'x-user': 'owner' } })
    const listener = await session.listen()
    const call = await session.at(a.url).call('work', { key, ms: 1500, stubborn: true, say: 'a late word' })
    await until(async () => (await happened(a, key)).includes('started'), 'the handler runs')
    t.ok((await traces(cluster.redis, cluster.keyPrefix, session.sessionId)).length >= 3)

    const at = performance.now()
    t.equal((await session.at(b.url).del()).status, 204)
    t.strictSame(await traces(cluster.redis, cluster.keyPrefix, session.sessionId), [])
    t.equal(await within(listener.stream.ended, 'the end of the stream'), 'end')
    t.equal(await within(call.stream.ended, 'the end of the stream'), 'end')
    took.push(performance.now() - at)
    await until(async () => (await happened(a, key)).includes('aborted'), 'its signal is aborted')
    await isGone(t, session, cursorOf(call.stream.frames)!)

    await until(async () => (await happened(a, key)).includes('ended'), 'the stubborn handler has sent its late word')
    ended.push(session.sessionId)
  }
  const since = performance.now()
  await until(() => performance.now() - since > 5000, 'the replicas have looked after their sessions')
  for (const sessionId of ended) t.strictSame(await traces(cluster.redis, cluster.keyPrefix, sessionId), [])
  t.comment(`streams ended ${took.map(Math.round).join(', ')} ms after the DELETE was sent`)
  t.ok(took.sort((x, y) => x - y)[1]! < 1000, 'told, not found out by a tick or a look')
  t.strictSame([...(await a.stats()).uncaught, ...(await b.stats()).uncaught], [])
})

t.test('a call that is answered as plain JSON ends with its session', async t => {
  const session = await initialize(a.url)
  const plain = session.call('work', { key: 'plain', ms: 60_000 }, { headers: { accept: 'application/json' } })
  await until(async () => (await happened(a, 'plain')).includes('started'), 'the handler runs')
  t.equal((await session.at(b.url).del()).status, 204)
  t.match(await (await plain).response(), { result: { isError: true } })
  t.ok((await happened(a, 'plain')).includes('aborted'))
})

t.test('a DELETE holds although its message was missed', async t => {
  const proxy = await startFaultProxy(t, redisUrl())
  const c = await cluster.add({ redisUrl: proxy.url })
  const session = await initialize(c.url)
  const listener = await session.listen()
  const call = await session.call('work', { key: 'unheard', ms: 60_000 })
  const talking = await session.call('tick', { n: 1000, ms: 20 })
  await talking.stream.until(({ message }) => message !== undefined)
  await until(async () => (await happened(c, 'unheard')).includes('started'), 'the handler runs')
  proxy.stall(({ isSubscriber }) => isSubscriber)
  const at = performance.now()
  t.equal((await session.at(b.url).del()).status, 204)
  t.equal(await within(listener.stream.ended, 'the end of the stream'), 'end')
  t.equal(await within(call.stream.ended, 'the end of the stream'), 'end')
  t.equal(await within(talking.stream.ended, 'the end of the stream'), 'end')
  await until(async () => (await happened(c, 'unheard')).includes('aborted'), 'its signal is aborted')
  t.comment(`found out ${Math.round(performance.now() - at)} ms after`)
  t.strictSame(await traces(cluster.redis, cluster.keyPrefix, session.sessionId), [])
  proxy.restore()
})

t.test('B72: nothing of a stranger gets into a session that he knows the ID of', async t => {
  const session = await initialize(a.url, { headers: { 'x-user': 'victim' }, capabilities: { elicitation: { form: {} } } })
  const listener = await session.listen()
  const call = await session.call('ask', { question: 'for the victim' })
  const { id } = (await call.stream.until(({ message }) => message?.method === 'elicitation/create')).at(-1)!.message
  await (await session.call('emit', { n: 1 })).response()
  const cursor = cursorOf(await listener.stream.until(({ message }) => message?.params?.data?.i === 1))!

  for (const user of [{ 'x-user': 'stranger' }, {}]) {
    const { 'x-user': _owner, ...known } = session.headers
    const headers = { ...known, ...user }
    const answers = await Promise.all([
      ...[
        { jsonrpc: '2.0', id: 7, method: 'tools/call', params: { name: 'emit', arguments: { n: 3 } } },
        { jsonrpc: '2.0', id, result: { action: 'accept', content: { answer: 'injected' } } },
        { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: call.id } },
        { jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken: id, progress: 1 } }
      ].map(message => post(b.url, message, headers)),
      get(b.url, headers),
      get(b.url, { ...headers, 'last-event-id': cursor }),
      del(b.url, headers)
    ])
    for (const { status, body } of answers) t.strictSame([status, body], [404, NOT_FOUND])
  }
  t.ok(listener.stream.isOpen)
  t.equal((await session.at(b.url).respond(id, { action: 'accept', content: { answer: 'mine' } })).status, 202)
  t.match(JSON.parse((await call.response()).result.content[0].text), { answer: 'mine', progress: [] })
  await (await session.call('emit', { n: 2 })).response()
  await listener.stream.until(({ message }) => message?.params?.data?.i === 2)
  t.strictSame(listener.stream.frames.flatMap(({ message }) => message?.params?.data?.i ?? []), [1, 1, 2], 'nothing on the stream that is not its own')
})
