// An SDK server that serves nothing is let go; its session lives on in Redis.
import t from 'tap'
import { startCluster } from './helpers/hosts.ts'
import { initialize, type Session } from './helpers/sse-client.ts'
import { until } from './helpers/wait.ts'

async function text (session: Session, name: string, args: object): Promise<string> {
  return (await (await session.call(name, args as Record<string, unknown>)).response()).result.content[0].text
}

t.test('idle instances are let go while their sessions live on', async t => {
  const { hosts: [c, d], url } = await startCluster(t, 2, { plugin: { idleMs: 1000, sessionTtlMs: 6000, keepAliveMs: 1000, retention: { windowMs: 60_000 } } })
  const sessions = await Promise.all(Array.from({ length: 100 }, () => initialize(url)))
  const [session] = sessions as [Session]
  await text(session.at(c!.url), 'echo', { text: 'here' })
  await text(session.at(d!.url), 'echo', { text: 'and there' })
  const listener = await session.at(c!.url).listen()
  const working = await session.at(d!.url).call('work', { key: 'long', ms: 8000 })
  await until(async () => (await c!.stats()).servers === 0, 'no instance is left where nothing runs', 20_000)
  // Each replica looks on its own.
  await until(async () => (await d!.stats()).servers <= 1, 'the idle ones to be let go on the other replica, too', 20_000)
  t.equal((await d!.stats()).servers, 1, 'one is left where a call runs')
  t.match(await working.response(20_000), { result: { content: [{ text: 'worked on long' }] } })
  await until(async () => (await d!.stats()).servers === 0, 'it goes when the call is over', 20_000)

  t.ok(listener.stream.isOpen, 'a stream needs no instance')
  await d!.mcp('notify', session.sessionId, { method: 'notifications/message', params: { level: 'info', data: 'to an idle session' } })
  await listener.stream.until(({ message }) => message?.params?.data === 'to an idle session')
  t.equal(await text(session.at(c!.url), 'echo', { text: 'again' }), 'again')
  t.equal((await c!.stats()).servers, 1)
})

t.test('an instance that still sends or waits for an answer is not idle', async t => {
  const { hosts: [c], url } = await startCluster(t, 1, { plugin: { idleMs: 1000, sessionTtlMs: 3000, keepAliveMs: 500, retention: { windowMs: 60_000 } } })
  const session = await initialize(url, { capabilities: { elicitation: { form: {} } } })
  const listener = await session.listen()
  await text(session, 'later', { n: 12, everyMs: 400 })
  await listener.stream.until(({ message }) => message?.params?.data?.i === 12, 20_000)
  t.pass('a background job of the server goes on beyond idleMs')

  await text(session, 'askLater', { question: 'Still there?' })
  const frames = await listener.stream.until(({ message }) => message?.method === 'elicitation/create')
  const asked = performance.now()
  await until(() => performance.now() - asked > 4000, 'far beyond idleMs')
  t.equal((await session.respond(frames.at(-1)!.message.id, { action: 'accept', content: { answer: 'yes' } })).status, 202)
  await listener.stream.until(({ message }) => message?.params?.data?.answer === 'yes')
  t.equal((await c!.stats()).counters.unclaimedAnswers, 0)
})
