import type { FastifyInstance } from 'fastify'

/** Log messages with data `{ i: from }` to `{ i: to }` on a session's standalone stream; resolves when they are logged. */
export async function emitData (app: FastifyInstance, sessionId: string, from: number, to: number, extra: object = {}): Promise<void> {
  const sent: Array<Promise<void>> = []
  for (let i = from; i <= to; i++) {
    sent.push(app.mcp.notify(sessionId, { method: 'notifications/message', params: { level: 'info', data: { i, ...extra } } }))
    // Bursts, but none so large that a busy machine takes longer for it than a Redis command may.
    if (sent.length % 500 === 0) await Promise.all(sent)
  }
  await Promise.all(sent)
}
