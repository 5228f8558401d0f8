// Three replicas, one Redis, a balancer without affinity that cuts connections, stock SDK clients: what is lost elsewhere
// and what happens here. Run it with `npm run demo`.
import { randomBytes } from 'node:crypto'
import { startBalancer, type Exchange } from '../test/helpers/balancer.ts'
import { startNaiveServer } from '../test/helpers/naive-servers.ts'
import { connectRedis, keysUnder } from '../test/helpers/redis.ts'
import { initialize } from '../test/helpers/sse-client.ts'
import { connectStock } from '../test/helpers/stock-clients.ts'
import { until } from '../test/helpers/wait.ts'
import { Stage } from './demo-stage.ts'

const CHECKS = 30
const MAX_EVENTS = 40
const prefix = `demo:${randomBytes(4).toString('hex')}:`
const stage = new Stage({ REDIS_URL: process.env.REDIS_URL ?? '', KEY_PREFIX: prefix, MAX_EVENTS, KEEP_ALIVE_MS: 2000, GRACE_MS: 15_000, LOG_LEVEL: 'fatal' })
const upTo = (n: number): string => Array.from({ length: n }, (_, i) => i + 1).join()

try {
  await stage.open(3)
  const kill = killDuringCall()
  await cutCall(1)
  await cutCall(2)
  await whileAway()
  await elicitation()
  await gap()
  await future()
  await naive()
  await rollingReplacement()
  await kill()
  await leaveNothing()
} finally {
  await stage.close()
}
process.exitCode = stage.report(CHECKS) ? 0 : 1

/** A tool call is cut in the middle; the client comes back to another replica. */
async function cutCall (sdk: 1 | 2): Promise<void> {
  stage.scene(`A call of SDK ${sdk}.x is cut and resumed`)
  const client = await connectStock(stage, sdk, stage.balancer.url)
  const { sessionId } = client
  const progress: number[] = []
  const result = client.callText('tick', { n: 25, ms: 60 }, { onprogress: ({ progress: i }) => progress.push(i) })
  await until(() => progress.length >= 8, 'the eighth progress notification')
  const call = last(sessionId, 'POST')
  stage.balancer.cut(exchange => exchange === call)
  const before = progress.length
  const text = await result
  const resume = last(sessionId, 'GET', true)
  stage.showExchange(call)
  stage.showExchange(resume)
  stage.check('the result arrives', text === 'ticked 25')
  stage.check(`progress 1 to 25, each once, in order, although the connection was cut after ${before}`, progress.join() === upTo(25))
  stage.check('another replica served the resume, while the first one still ran the tool', resume.upstream !== call.upstream)
  stage.check('it was announced as resumed', /^resumed;cause=(replay|caught-up)/.test(outcomeOf(resume)))
  await client.close()
}

/** Notifications are sent while no connection listens; then nothing is missed at all. */
async function whileAway (): Promise<void> {
  stage.scene('Notifications while the client is away')
  const client = await connectStock(stage, 2, stage.balancer.url)
  const { sessionId } = client
  const listening = (): Exchange[] => exchanges(sessionId).filter(({ method, isOpen, status }) => method === 'GET' && isOpen && status === 200)
  await until(() => listening().length === 1, 'the listener')
  stage.balancer.cut(exchange => listening().includes(exchange))
  await client.callText('emit', { n: 5, ms: 0 })
  await until(() => client.notifications.length >= 5, 'the notifications')
  let resume = last(sessionId, 'GET', true)
  stage.showExchange(resume)
  stage.check('the five that were sent meanwhile arrive, each once, in order', client.notifications.map(({ params }) => params.data.i).join() === upTo(5))
  stage.check('the answer says that five were replayed', outcomeOf(resume).includes('cause=replay;replay=5'))

  await until(() => listening().length === 1, 'the listener again')
  stage.balancer.cut(exchange => listening().includes(exchange))
  await until(() => last(sessionId, 'GET', true) !== resume && last(sessionId, 'GET', true).status === 200, 'the next resume')
  resume = last(sessionId, 'GET', true)
  stage.showExchange(resume)
  stage.check('with nothing missed the answer says so', outcomeOf(resume).startsWith('resumed;cause=caught-up;replay=0'))
  await client.callText('emit', { n: 1, ms: 0 })
  await until(() => client.notifications.length >= 6, 'a live notification')
  stage.check('and the stream is live', client.notifications.length === 6)
  await client.terminate()
}

/** The client's answer to a question arrives on another replica than the one whose tool waits for it. */
async function elicitation (): Promise<void> {
  stage.scene('A question is answered through another replica')
  const client = await connectStock(stage, 2, stage.balancer.url, { onElicit: () => ({ action: 'accept', content: { answer: 'forty-two' } }) })
  const text = await client.callText('ask')
  const [asked, answered] = exchanges(client.sessionId).filter(({ method }) => method === 'POST').slice(-2) as [Exchange, Exchange]
  stage.showExchange(asked)
  stage.showExchange(answered)
  stage.check('the tool got the answer', text.includes('forty-two'))
  stage.check('which another replica had received', asked.upstream !== answered.upstream && answered.status === 202)
  await client.terminate()
}

/** More is sent than the log retains. */
async function gap (): Promise<void> {
  stage.scene(`A gap: the log retains ${MAX_EVENTS} events`)
  const session = await initialize(stage.balancer.url)
  const first = await session.listen()
  const primed = await first.stream!.next()
  first.cut()
  const sent = MAX_EVENTS + 12
  await (await session.call('emit', { n: sent, ms: 0 })).response()
  await until(async () => (await newest(session.sessionId)) >= sent, 'all events to be logged')
  const answer = await session.resume(primed.id!)
  const frames = await answer.stream!.until(({ message }) => message?.params?.data?.i === sent)
  const notice = frames.find(({ message }) => message?.params?.data?.outcome === 'gap')!
  const received = frames.filter(({ message }) => message?.params?.data?.i !== undefined)
  stage.show(`Mcp-Resume: ${String(answer.headers['mcp-resume'])}`)
  for (const { id, data } of frames.slice(0, 4)) stage.show(`${id ?? '(no id)'}  ${data === '' ? '(empty)' : data!}`)
  stage.check('the application sees a notice before anything else', frames.findIndex(frame => frame === notice) < frames.indexOf(received[0]!))
  stage.check('the count is exact: missed + received = sent', notice.message.params.data.missed + received.length === sent)
  stage.check('the lists are announced as changed, so that the client reads them again', frames.some(({ message }) => message?.method === 'notifications/tools/list_changed'))
  stage.check('what is retained follows in order', received.every(({ message }, i) => message.params.data.i === sent - received.length + 1 + i))

  stage.scene('The stock client in the same place')
  const client = await connectStock(stage, 1, stage.balancer.url)
  await until(() => exchanges(client.sessionId).some(({ method, isOpen, status }) => method === 'GET' && isOpen && status === 200), 'the listener')
  stage.balancer.cut(({ method, headers }) => method === 'GET' && headers['mcp-session-id'] === client.sessionId)
  await client.callText('emit', { n: sent, ms: 0 })
  await until(() => client.notifications.some(({ params }) => params?.data?.i === sent), 'the last notification')
  const said = client.notifications.find(({ params }) => params?.data?.outcome === 'gap')
  stage.show(`the application got: ${JSON.stringify(said)}`)
  const got = client.notifications.filter(({ params }) => params?.data?.i !== undefined).length
  stage.check('its application is told of the gap, with the count', said?.params.data.missed + got === sent)
  await client.terminate()
  await session.del()
}

/** A cursor that this log never issued. */
async function future (): Promise<void> {
  stage.scene('A cursor from the future')
  const session = await initialize(stage.balancer.url)
  const first = await session.listen()
  const [seq, ...rest] = (await first.stream!.next()).id!.split('.')[0]!.split('-')
  first.cut()
  const answer = await session.resume([Number(seq) + 1000, ...rest].join('-'))
  stage.show(`Mcp-Resume: ${String(answer.headers['mcp-resume'])}`)
  const [, notice] = [await answer.stream!.next(), await answer.stream!.next()]
  stage.show(`${notice.id ?? '(no id)'}  ${notice.data!}`)
  stage.check('it is named', String(answer.headers['mcp-resume']).startsWith('future;cause=ahead') && notice.message.params.data.outcome === 'future')
  await (await session.call('emit', { n: 1, ms: 0 })).response()
  const [event] = (await answer.stream!.until(({ message }) => message?.params?.data?.i === 1)).slice(-1)
  answer.cut()
  const again = await session.resume(event!.id!)
  stage.show(`Mcp-Resume: ${String(again.headers['mcp-resume'])}`)
  stage.check('the client has recovered: its next cursor is resumed', String(again.headers['mcp-resume']).startsWith('resumed;cause=caught-up'))
  await session.del()
}

/** The same on a server that numbers events per connection and keeps its buffer per session. */
async function naive (): Promise<void> {
  stage.scene('The same on a naive server: numbers per connection, buffer per session')
  const server = await startNaiveServer(stage, 'per-connection')
  const client = await connectStock(stage, 2, server.url)
  await until(() => server.listening, 'the listener')
  server.emit(5)
  await until(() => client.notifications.length === 5, 'five notifications')
  server.cut('listener')
  await until(() => !server.listening, 'the cut')
  server.emit(3)
  await until(() => server.listening, 'the resume')
  server.emit(2)
  await until(() => client.notifications.some(({ params }) => params.data === 10 || params.data.i === 10), 'what is sent last')
  const got = client.notifications.map(({ params }) => params.data.i ?? params.data) as number[]
  stage.show(`GET with Last-Event-ID: ${server.gets.at(-1)}  sent: ${upTo(10)}  received: ${got.join()}`)
  stage.check('the client misses or repeats messages', got.join() !== upTo(10))
  stage.check('and nothing throws: no error reached the application', client.errors.every(error => /SSE stream disconnected|terminated/.test(error.message)))
  await client.close()
}

/** Every replica is replaced while a call runs. */
async function rollingReplacement (): Promise<void> {
  stage.scene('All three replicas are replaced under a running call')
  const client = await connectStock(stage, 2, stage.balancer.url)
  const progress: number[] = []
  const result = client.callText('tick', { n: 60, ms: 100 }, { onprogress: ({ progress: i }) => progress.push(i), resetTimeoutOnProgress: true })
  await until(() => progress.length >= 3, 'the call to run')
  const old = stage.balancer.targets.map(url => stage.replica(url))
  const exits: Array<Promise<{ code: number | null }>> = []
  for (const replica of old) {
    const fresh = await stage.start()
    stage.balancer.targets = stage.balancer.targets.map(url => url === replica.url ? fresh.url : url)
    exits.push(replica.sigterm())
    stage.show(`${stage.name(replica.url)} is told to end, ${stage.name(fresh.url)} takes its place (${exits.length} of 3)`)
  }
  const text = await result
  stage.check('the call completes with every progress notification once', text === 'ticked 60' && progress.join() === upTo(60))
  stage.check('every replica ends by itself, with exit code 0', (await Promise.all(exits)).every(({ code }) => code === 0))
  stage.check('the session goes on on the new ones', await client.callText('echo', { text: 'still here' }) === 'still here')
  await client.terminate()
}

/**
 * The replica that runs a call dies without a word. Started early, since its lease has to run out, and behind a balancer
 * of its own, so that the turns of the other scenes stay theirs.
 */
function killDuringCall (): () => Promise<void> {
  const outcome = (async () => {
    const doomed = await stage.start()
    const others = await startBalancer(stage, stage.balancer.targets)
    const session = await initialize(doomed.url)
    const call = await session.call('slow', { ms: 120_000 })
    const opening = await call.stream!.next()
    await doomed.kill9()
    const killed = performance.now()
    const elsewhere = session.at(others.url)
    const echo = await (await elsewhere.call('echo', { text: 'hello' })).response()
    const served = performance.now() - killed
    const answer = await elsewhere.resume(opening.id!)
    const frames = await answer.stream!.rest(30_000)
    const settled = performance.now() - killed
    const again = await elsewhere.resume(frames.at(-1)!.id!)
    await elsewhere.del()
    return { echo, served, frames, settled, again }
  })()
  outcome.catch(() => { /* awaited below */ })
  return async () => {
    const { echo, served, frames, settled, again } = await outcome
    stage.scene('kill -9 of the replica that runs a call')
    const end = frames.at(-1)!
    stage.show(`${end.id}  ${end.data}`)
    stage.check(`new requests are served at once (${Math.round(served)} ms)`, echo.result.content[0].text === 'hello')
    stage.check(`the call ends with a definite error (after ${(settled / 1000).toFixed(1)} s)`, end.message.result.isError === true)
    stage.check('once: its next resume is a 204', again.status === 204)
  }
}

async function leaveNothing (): Promise<void> {
  stage.scene('What is left')
  const redis = await connectRedis(stage)
  for (const url of stage.balancer.targets) await stage.replica(url).sigterm()
  const sessions = (await keysUnder(redis, prefix)).filter(key => key.includes('{'))
  const open = sessions.filter(key => key.endsWith(':log')).length
  stage.show(`${open} sessions in Redis: those whose client left without a DELETE`)
  stage.check('a session that was deleted leaves no key', open === 2)
  await Promise.all((await keysUnder(redis, prefix)).map(async key => await redis.del(key)))
}

function exchanges (sessionId: string | undefined): Exchange[] {
  return stage.balancer.requests.filter(({ headers }) => headers['mcp-session-id'] === sessionId)
}

function last (sessionId: string | undefined, method: string, withCursor = false): Exchange {
  return exchanges(sessionId).findLast(exchange => exchange.method === method && (!withCursor || exchange.headers['last-event-id'] !== undefined))!
}

function outcomeOf ({ responseHeaders }: Exchange): string {
  return String(responseHeaders?.['mcp-resume'] ?? '')
}

/** The offset of the newest event on a session's standalone stream. */
async function newest (sessionId: string): Promise<number> {
  const redis = await connectRedis(stage)
  try {
    const field = await redis.hget(`${prefix}{${sessionId}}`, 's:1')
    return Number(field?.split(' ')[1] ?? 0)
  } finally {
    redis.disconnect()
  }
}
