// What the guard takes for a resume that was answered with neither a replay nor a signal.
import t from 'tap'
import type { ResumeGuardOptions } from '../lib/client/index.ts'
import { settle, setUpGuard } from './helpers/scripted-fetch.ts'

const message = (id: string | undefined): string => `${id === undefined ? '' : `id: ${id}\n`}data: {"method":"n"}\n\n`
const response = (id: string): string => `id: ${id}\ndata: {"id":1,"result":{"n":1}}\n\n`
const failure = (id: string): string => `id: ${id}\ndata: {"id":1,"error":{"code":1,"message":"no such method"}}\n\n`

// What a connection would do.
const alive = setInterval(() => {}, 1000)
t.teardown(() => clearInterval(alive))

t.test('silence: nothing at all', async t => {
  const { cut, connect, violations, guard } = setUpGuard({ silentMs: 30 })
  await cut([message('3')])
  const { body, reader } = await connect({ claimed: '3' })
  body.send(': open\n\n')
  const error = await reader.ended
  t.match(violations, [{ kind: 'silent', last: '3', received: undefined, stream: '1' }])
  t.equal(error, violations[0])
  await settle()
  t.ok(body.cancelled)
  await t.rejects(connect(), violations[0]!)
  t.equal(guard.level(), 'integer')
})

t.test('silence: an end without a word, or a message that tells nothing', async t => {
  for (const [frame, kind] of [[undefined, 'silent'], [message(undefined), 'silent'], ['event: ping\ndata: {}\n\n', 'silent']] as const) {
    const { cut, connect, violations } = setUpGuard()
    await cut([message('3')])
    const { body, reader } = await connect({ claimed: '3' })
    if (frame !== undefined) body.send(frame)
    body.end()
    t.equal(await reader.ended, violations[0])
    t.match(violations, [{ kind }])
    t.strictSame(reader.messages, frame === undefined || frame.startsWith('data') ? [] : ['{}'])
  }
})

t.test('no silence: a signal, the cursor again, the next event, a break, or a server that is known to be silent', async t => {
  const table: Array<[what: string, signal: string | undefined, frame: string | undefined, options?: Partial<ResumeGuardOptions>]> = [
    ['a signal', 'resumed;cause=caught-up', undefined],
    ['away', 'away', undefined],
    ['the cursor again', undefined, 'id: 3\ndata:\n\n'],
    ['the next event', undefined, message('4')],
    ['a server that is known', undefined, undefined, { silentMs: 0 }],
    ['an announced gap', 'gap;cause=evicted;missed=2', undefined]
  ]
  for (const [what, signal, frame, options] of table) {
    const { cut, connect, violations } = setUpGuard({ silentMs: 20, ...options })
    await cut([message('3')])
    const { body, reader } = await connect({ claimed: '3', signal })
    if (frame !== undefined) body.send(frame)
    await settle()
    // The time is up for every connection that was opened before this one.
    const witness = setUpGuard({ silentMs: 20 })
    await witness.cut([message('3')])
    await (await witness.connect({ claimed: '3' })).reader.ended
    t.equal(reader.outcome, undefined, `${what}: still open`)
    body.end()
    t.equal(await reader.ended, 'end', what)
    t.strictSame(violations, [], what)
  }
  const { cut, violations } = setUpGuard()
  await cut([message('3')])
  await cut([], { claimed: '3' })
  t.strictSame(violations, [], 'a break before anything came')
})

t.test('no silence: the stream is finished', async t => {
  for (const last of [response('4'), failure('4')]) {
    const { cut, connect, violations } = setUpGuard()
    await cut([message('3'), last], { method: 'POST' })
    const { body, reader } = await connect({ claimed: '4' })
    body.end()
    t.equal(await reader.ended, 'end')
    t.strictSame(violations, [])
  }
})

t.test('the guard\'s timer keeps no process up', async t => {
  const timers = (): number => process.getActiveResourcesInfo().filter(name => name === 'Timeout').length
  const before = timers()
  const { cut, connect } = setUpGuard()
  await cut([message('3')])
  const { reader } = await connect({ claimed: '3' })
  await settle()
  t.equal(timers(), before)
  await reader.cancel()
})
