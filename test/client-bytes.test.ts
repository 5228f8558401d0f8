// The guard as a pipe: what it lets through, when, and how much it holds.
import fc from 'fast-check'
import t from 'tap'
import { readAsStock, settle, setUpGuard, type ScriptedBody } from './helpers/scripted-fetch.ts'

const url = 'http://127.0.0.1/mcp'
const listen = { method: 'GET', headers: { accept: 'text/event-stream', 'mcp-session-id': 's' } }

async function open (): Promise<{ response: Response, body: ScriptedBody }> {
  const { request, response } = setUpGuard().ask()
  const body = (await request).respond()
  return { response: await response, body }
}

/** Everything the guard passes on, one element a chunk. */
async function passed (response: Response): Promise<string[]> {
  const chunks: string[] = []
  for await (const chunk of response.body!) chunks.push(Buffer.from(chunk).toString())
  return chunks
}

t.test('options', async t => {
  for (const silentMs of [-1, NaN, Infinity, 2 ** 31]) t.throws(() => setUpGuard({ silentMs }), RangeError)
  t.doesNotThrow(() => setUpGuard({ silentMs: 0 }))
})

t.test('what is no event stream passes untouched', async t => {
  const { server, guard } = setUpGuard()
  const ask = async (init: RequestInit, headers: Record<string, string>, status = 200): Promise<void> => {
    const pending = guard.fetch(url, init)
    const request = await server.next()
    request.respond(headers, status).send('{}')
    const response = await pending
    t.equal(response.status, status)
    t.equal(response.headers.get('content-type'), headers['content-type'] ?? null)
  }
  await ask({ method: 'POST', body: '{}' }, { 'content-type': 'application/json' })
  await ask({ method: 'DELETE' }, { 'content-type': 'text/plain' })
  await ask({}, { 'content-type': 'application/json' })
  await ask(listen, {}, 405)
  await ask(listen, { 'content-type': 'application/json' }, 404)
  await ask(listen, {}, 204)
})

t.test('status and headers of an event stream stay', async t => {
  const { server, guard } = setUpGuard()
  const pending = guard.fetch(url, listen)
  ;(await server.next()).respond({ 'x-here': '1' }, 201)
  const response = await pending
  t.match(response, { status: 201, ok: true })
  t.equal(response.headers.get('x-here'), '1')
  t.equal(response.headers.get('content-type'), 'text/event-stream')
  await response.body!.cancel()
})

t.test('whole frames, byte for byte, however they arrive', async () => {
  const frames = fc.array(fc.record({
    data: fc.oneof(fc.constant('é\u2028\u{1F600}'), fc.string()),
    comment: fc.boolean()
  }), { minLength: 1, maxLength: 6 })
  await fc.assert(fc.asyncProperty(frames, fc.constantFrom('\n', '\r\n', '\r'), fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1 }), async (frames, eol, sizes) => {
    const texts = frames.map(({ data, comment }, i) =>
      [...comment ? [': c'] : [], `id: ${i + 1}`, 'event: message', `data: ${JSON.stringify(data)}`, '', ''].join(eol))
    const bytes = Buffer.from(texts.join(''))
    const { response, body } = await open()
    for (let at = 0, i = 0; at < bytes.length; i++) {
      const size = sizes[i % sizes.length]!
      body.send(bytes.subarray(at, at + size))
      at += size
    }
    body.end()
    const chunks = await passed(response)
    const whole = chunks.join('') === bytes.toString() || (eol === '\r\n' && chunks.join('') + '\n' === bytes.toString())
    // Each chunk is a frame, or a comment line that goes ahead of it.
    const framed = chunks.every(chunk => /^\n?(:.*[\r\n]+)?id:.*[\r\n]+event:.*[\r\n]+data:[^\r\n]*[\r\n]+$/.test(chunk) || /^\n?:.*[\r\n]+$/.test(chunk))
    return whole && framed
  }), { numRuns: 200 })
})

t.test('a comment between frames passes at once', async t => {
  const { response, body } = await open()
  const reader = response.body!.getReader()
  body.send(': ka\n')
  t.equal(Buffer.from((await reader.read()).value!).toString(), ': ka\n')
  body.send('id: 1\nda')
  body.send('ta: {}\n\n: ka\n: ka\n')
  t.equal(Buffer.from((await reader.read()).value!).toString(), 'id: 1\ndata: {}\n\n')
  t.equal(Buffer.from((await reader.read()).value!).toString(), ': ka\n')
  await reader.cancel()
})

t.test('an unfinished frame does not pass', async t => {
  const { response, body } = await open()
  body.send('id: 1\ndata: {}\n\nid: 2\ndata: {}\n')
  body.end()
  t.strictSame(await passed(response), ['id: 1\ndata: {}\n\n'])
})

t.test('a reader that does not read stops the server', async t => {
  const { response, body } = await open()
  for (let id = 1; id <= 10; id++) body.send(`id: ${id}\ndata: {}\n\n`)
  await settle()
  t.equal(body.taken, 0, 'nothing is read ahead')
  const reader = response.body!.getReader()
  await reader.read()
  await reader.read()
  await settle()
  t.equal(body.taken, 2)
  await reader.cancel()
})

t.test('a cancelled reader cancels the request', async t => {
  const { response, body } = await open()
  const reader = response.body!.getReader()
  const pending = reader.read()
  await settle()
  await reader.cancel()
  t.match(await pending, { done: true })
  await settle()
  t.ok(body.cancelled)
})

t.test('what came before a break is read before the break shows', async t => {
  const { response, body } = await open()
  const reader = readAsStock(response)
  body.send('id: 1\ndata: 1\n\nid: 2\ndata: 2\n\n')
  body.send('id: 3\ndata: 3\n\nid: 4\nda')
  body.fail(new Error('reset'))
  t.match(await reader.ended, { message: 'reset' })
  t.strictSame(reader.messages, ['1', '2', '3'])
  t.equal(reader.lastEventId, '3')
})

t.test('a long message is not searched again for each of its chunks', async t => {
  const { response, body } = await open()
  const chunk = Buffer.alloc(65536, 'x')
  body.send('id: 1\ndata: ')
  for (let i = 0; i < 256; i++) body.send(chunk)
  body.send('\n')
  body.send('\n')
  body.end()
  const since = performance.now()
  const [frame, ...more] = await passed(response)
  t.equal(frame!.length, 14 + 256 * 65536)
  t.strictSame(more, [])
  t.comment(`16 MiB in ${Math.round(performance.now() - since)} ms`)
})

t.test('a message without an end is not held for ever', async t => {
  const { response, body } = await open()
  const chunk = Buffer.alloc(2 ** 20, 'x')
  body.send('data: ')
  for (let i = 0; i < 64; i++) body.send(chunk)
  await t.rejects(response.body!.getReader().read(), RangeError)
  await settle()
  t.ok(body.cancelled)
})
