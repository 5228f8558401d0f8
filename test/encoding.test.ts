// Any text arrives as it was sent, whatever a parser may stumble over and however the bytes are cut.
import { once } from 'node:events'
import { connect } from 'node:net'
import t from 'tap'
import { startBalancer } from './helpers/balancer.ts'
import { backends, startApp, startPair } from './helpers/plugin-app.ts'
import { keyPrefix, redisUrl } from './helpers/redis.ts'
import { startReplica } from './helpers/replica.ts'
import { initialize } from './helpers/sse-client.ts'
import { eventsOf } from './helpers/stream-events.ts'
import { connectStock } from './helpers/stock-clients.ts'
import { until } from './helpers/wait.ts'

const TEXTS = {
  'line and paragraph separators, next line': 'a\u2028b\u2029c\u0085d',
  'line ends': 'a\rb\nc\r\nd\n\n: no comment\n\nid: 1\ndata: x\n\n',
  NUL: 'a\0b',
  'a byte order mark': '\ufeffa\ufeff',
  'lone surrogates': 'a\ud800b\udc00c',
  emoji: '👩‍👩‍👧 é 漢字 𝒳',
  'escapes that are text': '\\u2028 \\n \\ \\u0000 " </script> \t\u007f'
}

/** The lines that this server may write; a comment is between two frames, each of which ends with a blank line. */
const STREAM = /^(?:: \w+\n|(?:id: [0-9a-z.-]+\n)?(?:retry: \d+\n)?data: [^\r\n\u0085\u2028\u2029]*\n\n|retry: \d+\n\n)*$/

function isLawful (raw: Buffer): boolean {
  return STREAM.test(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(raw))
}

/** Gives the client every byte of every body on its own. */
const byteByByte: typeof fetch = async (input, init) => {
  const response = await fetch(input, init)
  const cutUp = new TransformStream<Uint8Array, Uint8Array>({
    transform (chunk, controller) {
      for (let i = 0; i < chunk.length; i++) controller.enqueue(chunk.slice(i, i + 1))
    }
  })
  const { status, statusText, headers } = response
  return new Response(response.body === null ? null : response.body.pipeThrough(cutUp), { status, statusText, headers })
}

for (const backend of backends) {
  t.test(backend, async t => {
    await t.test('B85: separators, line ends, NUL and surrogates arrive as they were, live and replayed', async t => {
      const [a, b] = await startPair(t, backend)
      const session = await initialize(a.url)
      for (const [name, text] of Object.entries(TEXTS)) {
        // The same text as a tool's result, as the request's own id, and in a notification of the host.
        const { stream } = await session.call('echo', { text }, { id: text })
        const events = eventsOf(await stream.rest())
        t.strictSame(events[1]!.message, { jsonrpc: '2.0', id: text, result: { content: [{ type: 'text', text }] } }, name)
        const replayed = await session.at(b.url).resume(events[0]!.id)
        t.strictSame(eventsOf(await replayed.stream.rest()).map(({ message }) => message), [events[1]!.message], `${name}, replayed`)

        const listener = await session.at(b.url).listen()
        await a.app.mcp.notify(session.sessionId, { method: 'notifications/message', params: { level: 'info', data: { [text]: text } } })
        const frame = (await listener.stream.until(({ message }) => message !== undefined)).at(-1)!
        t.strictSame(frame.message.params.data, { [text]: text }, `${name}, pushed`)
        listener.cut()
        for (const { raw } of [stream, replayed.stream, listener.stream]) t.ok(isLawful(raw), `${name}: LF only, escaped, one data line`)
      }
    })

    await t.test('B85: the same in an answer of one frame, in a batch and in JSON', async t => {
      const { url } = await startApp(t, backend)
      for (const accept of ['text/event-stream', 'application/json']) {
        const session = await initialize(url, { protocolVersion: '2025-03-26', headers: { accept } })
        for (const [name, text] of Object.entries(TEXTS)) {
          const answer = await session.request('ping', {}, { id: text })
          t.strictSame(answer.isStream ? (await answer.stream.rest())[0]!.message : answer.json(), { jsonrpc: '2.0', id: text, result: {} }, name)
          if (answer.isStream) t.ok(isLawful(answer.stream.raw), name)
        }
      }
    })

    await t.test('B87: LF only, no BOM, and every write is whole frames', async t => {
      const { url } = await startApp(t, backend, { keepAliveMs: 100 })
      const { headers } = await initialize(url)
      const { hostname, port, host } = new URL(url)
      const socket = connect({ host: hostname, port: Number(port) })
      t.teardown(() => socket.destroy())
      await once(socket, 'connect')
      const call = (name: string, args: object): void => {
        const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name, arguments: args } })
        socket.write(['POST /mcp HTTP/1.1', `host: ${host}`, 'content-type: application/json', `content-length: ${Buffer.byteLength(body)}`,
          'accept: text/event-stream', ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`), '', body].join('\r\n'))
      }
      let received = Buffer.alloc(0)
      socket.on('data', chunk => { received = Buffer.concat([received, chunk]) })
      for (const [name, args] of [['tick', { n: 30, ms: 10, bytes: 3000 }], ['big', { bytes: 300_000 }], ['echo', { text: '漢'.repeat(70_000) }]] as const) {
        received = Buffer.alloc(0)
        call(name, args)
        await until(() => received.toString('latin1').endsWith('0\r\n\r\n'), 'the end of the answer')
        // Node writes one HTTP chunk a write.
        const chunks = readChunks(received)
        for (const chunk of chunks) t.ok(isLawful(chunk), `${name}: a chunk of ${chunk.length} bytes`)
        t.notMatch(Buffer.concat(chunks).toString('utf8'), /^\ufeff/)
      }
    })
  })
}

t.test('B85, B87: stock clients get the same from single bytes, live, cut and replayed', async t => {
  const env = { REDIS_URL: redisUrl(), KEY_PREFIX: keyPrefix(t), KEEP_ALIVE_MS: 100 }
  const replicas = await Promise.all([startReplica(t, env), startReplica(t, env)])
  for (const version of [1, 2] as const) {
    await t.test(`SDK ${version}`, async t => {
      const balancer = await startBalancer(t, replicas.map(({ url }) => url))
      const client = await connectStock(t, version, balancer.url, { fetch: byteByByte })
      for (const [name, text] of Object.entries(TEXTS)) t.equal(await client.callText('echo', { text }), text, name)
      const progress: number[] = []
      const ticked = client.callText('tick', { n: 30, ms: 50 }, {
        onprogress: ({ progress: i }) => {
          // Not before there is something to replay, and something left to come.
          if (progress.push(i) === 10) balancer.cut(({ method, status }) => method === 'POST' && status === 200)
        }
      })
      t.equal(await ticked, 'ticked 30')
      t.strictSame(progress, Array.from({ length: 30 }, (_, i) => i + 1), 'each once, in order')
      t.ok(balancer.requests.some(({ method, headers }) => method === 'GET' && headers['last-event-id'] !== undefined), 'it was cut')
      t.strictSame(client.errors.filter(({ message }) => !/disconnected/.test(message)), [])
    })
  }
})

/** The chunks of an HTTP/1.1 answer. */
function readChunks (answer: Buffer): Buffer[] {
  const chunks: Buffer[] = []
  for (let at = answer.indexOf('\r\n\r\n') + 4; ;) {
    const end = answer.indexOf('\r\n', at)
    const size = parseInt(answer.toString('latin1', at, end), 16)
    if (size === 0) return chunks
    chunks.push(answer.subarray(end + 2, end + 2 + size))
    at = end + 2 + size + 2
  }
}
