// What is lost to the log's bounds is announced before anything else, with its exact size (DESIGN.md section 13).
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { backends, startPair, toolServer } from './helpers/plugin-app.ts'
import { seededRandom } from './helpers/random.ts'
import { initialize } from './helpers/sse-client.ts'
import type { Answer, Frame } from './helpers/sse-client.ts'
import { dataOf, eventsOf } from './helpers/stream-events.ts'

const random = seededRandom()
t.comment(`SEED=${random.seed}`)

const isNotice = ({ message }: Frame): boolean => message?.params?.logger === 'fastify-mcp-resume'

for (const backend of backends) {
  t.test(`a client that falls behind the log knows all that it lost (${backend})`, async t => {
    const [a, b] = await startPair(t, backend, {
      retention: { maxEvents: 40 },
      // Foreign entries, so that now and then nothing of the standalone stream is left.
      server: toolServer(async ({ args, emit }) => {
        for (let i = 0; i < args['n']; i++) await emit(i)
        return 'done'
      })
    })
    const session = await initialize(a.url)
    const apps = [a, b]
    let sent = 0
    const emit = async (n: number): Promise<void> => {
      const { app } = apps[random.below(2)]!
      await Promise.all(Array.from({ length: n }, () =>
        app.mcp.notify(session.sessionId, { method: 'notifications/message', params: { level: 'info', data: ++sent } })))
    }

    const end = new AbortController()
    const producer = (async () => {
      while (!end.signal.aborted) {
        await emit(1 + random.below(6))
        await sleep(random.between(0, 8))
      }
    })()
    const noise = (async () => {
      while (!end.signal.aborted) {
        await (await session.at(apps[random.below(2)]!.url).call('any', { n: 1 + random.below(60) })).response()
        await sleep(random.between(0, 150))
      }
    })()

    // Offset and data of an event are the same number: all are on one stream, sent in order.
    let at = 0
    let lost = 0
    let received = 0
    let cursor: string | undefined
    const seen: Record<string, number> = {}
    const wrong: string[] = []
    const read = async (answer: Answer, ms: number): Promise<void> => {
      const { stream } = answer
      const due = performance.now() + ms
      while (stream.isOpen && performance.now() < due) await sleep(2)
      answer.cut()
      await stream.ended
      const header = String(answer.headers['mcp-resume'])
      const outcome = header.split(';replay')[0]!.replace(/=\d+/, '')
      seen[outcome] = (seen[outcome] ?? 0) + 1
      let missed = Number(/missed=(\d+)/.exec(header)?.[1] ?? 0)
      if (missed > 0 && stream.frames.length > 1 && stream.frames[1]!.message.params.data.missed !== missed) wrong.push(`${header}: the notice disagrees`)
      // The first frame repeats the cursor; a later one without an event moves it over what was announced.
      for (const frame of stream.frames.slice(1)) {
        if (frame.id === undefined) continue
        const offset = Number(frame.id.split('-')[1])
        // The last of what announces a hole may carry the newest ID.
        const announces = isNotice(frame) || frame.message?.method?.endsWith('list_changed') === true
        const isEvent = eventsOf([frame]).length === 1 && !announces
        if (offset !== at + missed + (isEvent ? 1 : 0)) wrong.push(`${header}: ${frame.id} after offset ${at}`)
        if (isEvent) {
          received++
          if (dataOf(eventsOf([frame]))[0] !== offset) wrong.push(`${frame.id} is ${frame.data}`)
        }
        lost += missed
        missed = 0
        at = offset
      }
      cursor = stream.frames.findLast(({ id }) => id !== undefined)?.id ?? cursor
    }

    await read(await session.listen(), 50)
    for (const due = performance.now() + 5000; performance.now() < due;) {
      await sleep(random.below(3) === 0 ? random.between(0, 300) : 0)
      await read(await session.at(apps[random.below(2)]!.url).resume(cursor!), random.between(0, 60))
    }
    end.abort()
    await Promise.all([producer, noise])
    const last = await session.at(b.url).resume(cursor!)
    await last.stream.until(({ id }) => id?.split('-')[1] === String(sent))
    await read(last, 0)
    t.comment(JSON.stringify({ sent, received, lost, ...seen }))
    t.strictSame(wrong, [])
    t.equal(at, sent)
    t.equal(received + lost, sent, 'received or announced')
    t.ok(seen['gap;cause=evicted;missed'], 'it did fall behind')
  })
}
