// What the answers make of stock clients: nobody loops, nobody fights, nobody hurries. Two replicas, two processes.
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { startBalancer } from './helpers/balancer.ts'
import type { Balancer, Exchange } from './helpers/balancer.ts'
import { keyPrefix, redisUrl } from './helpers/redis.ts'
import { startReplica } from './helpers/replica.ts'
import type { Replica } from './helpers/replica.ts'
import { connectStock } from './helpers/stock-clients.ts'
import type { Stock } from './helpers/stock-clients.ts'
import type { Owner } from './helpers/teardown.ts'
import { until } from './helpers/wait.ts'

// They mostly wait for what must not happen.
t.jobs = 3

const env = { REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t), KEEP_ALIVE_MS: 300, MAX_EVENTS: 50 }
const replicas = await Promise.all([startReplica(t, env), startReplica(t, env)])

const isGet = ({ method }: Exchange): boolean => method === 'GET'
const isListening = (exchange: Exchange): boolean => isGet(exchange) && exchange.isOpen && exchange.status === 200

/** A stock client behind a balancer of its own. */
async function connect (t: Owner, version: 1 | 2, rewrite = (cursor: string) => cursor, targets: readonly Replica[] = replicas): Promise<{ client: Stock, balancer: Balancer }> {
  const balancer = await startBalancer(t, targets.map(({ url }) => url))
  const client = await connectStock(t, version, balancer.url, {
    fetch: (input, init) => {
      const headers = new Headers(init?.headers)
      const cursor = headers.get('last-event-id')
      if (cursor !== null) headers.set('last-event-id', rewrite(cursor))
      return fetch(input, { ...init, headers })
    }
  })
  await until(() => balancer.requests.some(isListening), 'the client listens')
  return { client, balancer }
}

function numbers ({ notifications }: Stock): number[] {
  return notifications.flatMap(({ method, params }) => method === 'notifications/message' && params.data.i !== undefined ? [params.data.i] : [])
}

t.test('B76: a resume that fails in any way ends in a stable state, not in a loop', { buffered: true }, async t => {
  const once = (cursor: string) => {
    const given = [cursor]
    return (own: string) => given.pop() ?? own
  }
  const cases: Array<{ name: string, version: 1 | 2, balancer: Balancer, before: number, check: () => Promise<void> }> = []
  for (const version of [1, 2] as const) {
    for (const [name, cursor] of [['evicted', '1-0-1-abcd'], ['future', '900000-0-1-abcd']] as const) {
      const { client, balancer } = await connect(t, version, once(cursor))
      await client.callTool('emit', { n: 60, ms: 0 })
      await until(() => numbers(client).length === 60, 'all is heard')
      const before = balancer.requests.filter(isGet).length
      balancer.cut(isGet)
      cases.push({
        name,
        version,
        balancer,
        before,
        async check () {
          const notice = client.notifications.find(({ params }) => params?.logger === 'fastify-mcp-resume')
          t.match(notice, { params: { level: 'error', data: { outcome: name === 'future' ? 'future' : 'gap' } } }, 'the application is told')
          // The answer has moved the cursor: a further cut is an ordinary resume.
          const gets = balancer.requests.filter(isGet).length
          balancer.cut(isGet)
          await until(() => balancer.requests.filter(isGet).slice(gets).some(isListening), 'the client is back')
          t.match(balancer.requests.filter(isGet).at(-1)!.responseHeaders!['mcp-resume'], /^resumed;/)
          client.notifications.length = 0
          await client.callTool('emit', { n: 2, ms: 0 })
          await until(() => numbers(client).length === 2, 'the listener hears on')
        }
      })
    }

    const finished = await connect(t, version)
    const before = finished.balancer.requests.filter(isGet).length
    // An error response does not tell SDK 1.x that the stream is finished: it comes back.
    await t.rejects(finished.client.callText('fail', { ms: 10 }), { code: 1001 })
    cases.push({ name: 'finished', version, balancer: finished.balancer, before, check: async () => { t.equal(await finished.client.callText('echo', { text: 'x' }), 'x') } })

    const unknown = await connect(t, version)
    const gets = unknown.balancer.requests.filter(isGet).length
    const { sessionId } = unknown.client
    await fetch(replicas[1].url, { method: 'DELETE', headers: { 'mcp-session-id': sessionId! } })
    cases.push({ name: 'unknown session', version, balancer: unknown.balancer, before: gets, check: async () => { await t.rejects(unknown.client.callText('echo', { text: 'x' }), /Session not found/) } })
  }
  // The loop that this is about has a period of one second.
  await sleep(6000)
  for (const { name, version, balancer, before, check } of cases) {
    const gets = balancer.requests.filter(isGet).slice(before)
    t.ok(gets.length <= 3, `SDK ${version}, ${name}: ${gets.map(({ status }) => status)}`)
    await check()
  }
})

t.test('two real listeners on one session settle, and the one that stays takes over without a loss', { buffered: true }, async t => {
  const [a, b] = replicas
  await Promise.all(([[1, 1, a], [1, 2, b], [2, 2, b]] as const).map(async ([one, two, other]) => {
    const versions = [one, two]
    const first = await connect(t, one, undefined, [a])
    const balancer = await startBalancer(t, [other.url])
    const second = { balancer, client: await connectStock(t, two, balancer.url, { sessionId: first.client.sessionId! }) }
    await second.client.client.notification({ method: 'notifications/initialized' })
    // Without muting each comes back a second after the other: the fight would be in full swing, and outlasts the 10 s
    // in which takeovers are counted.
    await sleep(12_000)
    for (const { balancer } of [first, second]) {
      const gets = balancer.requests.filter(isGet)
      t.ok(gets.length <= 4, `SDK ${versions.join(' and ')}: ${gets.length} GETs`)
      t.ok(isListening(gets.at(-1)!), 'left open, with comments')
    }
    await first.client.callTool('emit', { n: 1, ms: 0 })
    await until(() => numbers(first.client).length + numbers(second.client).length === 1, 'one of them hears it')
    const [carrier, muted] = numbers(first.client).length === 1 ? [first, second] : [second, first]
    await carrier.client.close()
    await muted.client.callTool('emit', { n: 2, ms: 0 })
    await until(() => numbers(muted.client).length >= 3, 'the other one hears everything')
    t.strictSame(numbers(muted.client), [1, 1, 2], `SDK ${versions.join(' and ')}: by its own cursor, each once`)
  }))
})

t.test('B83: a client waits for as long as the server asked', { buffered: true }, async t => {
  const own = { ...env, RETRY_MS: 2000 }
  const [leaving, staying] = await Promise.all([startReplica(t, own), startReplica(t, own)])
  const clients = await Promise.all(([1, 2] as const).map(async version => {
    const balancer = await startBalancer(t, [leaving.url])
    const client = await connectStock(t, version, balancer.url)
    await until(() => balancer.requests.some(isListening), 'the client listens')
    balancer.targets = [staying.url]
    return { version, balancer, client }
  }))
  const at = performance.now()
  await leaving.sigterm()
  await Promise.all(clients.map(async ({ version, balancer, client }) => {
    await until(() => balancer.requests.filter(isGet).length === 2, 'the client is back')
    t.ok(performance.now() - at >= 1990, `SDK ${version}, not shorter`)
    await until(() => balancer.requests.some(isListening), 'the client listens')
    await client.callTool('emit', { n: 1, ms: 0 })
    await until(() => numbers(client).length === 1, 'and hears')
    t.equal(balancer.requests.filter(isGet).length, 2)
  }))
})
