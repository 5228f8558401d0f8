import type { SessionRecord } from '../log/log.ts'
import type { Replica } from '../replica.ts'
import type { Context, MessageExtra } from './context.ts'
import { isResponse, type RpcId, type RpcNotification, type RpcResponse } from './jsonrpc.ts'
import { replicaOf } from './request-ids.ts'
import type { Sessions } from './sessions.ts'

export interface InboxOptions {
  readonly context: Context
  readonly replica: Replica
  readonly sessions: Sessions
  /** Life of an initialized session, in ms. */
  readonly sessionTtlMs: number
}

/** What a client sends that is no request, brought to where it takes effect: any replica may receive it. */
export class Inbox {
  readonly #options: InboxOptions

  constructor (options: InboxOptions) {
    this.#options = options
    const { replica } = options
    replica.on('cancel', body => {
      const { sid, requestId, params } = JSON.parse(body) as { sid: string, requestId: RpcId, params: Record<string, unknown> }
      void this.#cancelHere(sid, requestId, params)
    })
    replica.on('answer', body => {
      const { sid, message } = JSON.parse(body) as { sid: string, message: RpcResponse | RpcNotification }
      this.#answerHere(sid, message)
    })
  }

  /** Takes in a notification or an answer of the client. */
  async receive (sid: string, record: SessionRecord, message: RpcNotification | RpcResponse, extra: MessageExtra): Promise<void> {
    const { sessions, sessionTtlMs } = this.#options
    if (isResponse(message)) return await this.#answer(sid, message.id, message)
    const { method, params = {} } = message
    if (method === 'notifications/initialized') {
      await sessions.change(sid, { kind: 'initialized', ttlMs: sessionTtlMs })
    } else if (method === 'notifications/cancelled') {
      await this.#cancel(sid, params.requestId as RpcId, params)
    } else if (method === 'notifications/progress' && replicaOf(params.progressToken) !== undefined) {
      await this.#answer(sid, params.progressToken as string, message)
    } else {
      (await sessions.get(sid, record)).receive(message, extra)
    }
  }

  /** Cancels wherever the call runs: written to the log first, so that it holds although a message may be lost. */
  async #cancel (sid: string, requestId: RpcId, params: Record<string, unknown>): Promise<void> {
    const { context, replica } = this.#options
    await this.#cancelHere(sid, requestId, params)
    for (const [stream, { request }] of await context.log.unfinished(sid)) {
      if (request?.id !== requestId) continue
      const reply = await context.log.append(sid, { stream, events: [], finish: true, token: { replica: replica.id, n: context.outbox.nextToken() } })
      // The stream may be carried here although its call runs elsewhere.
      if (reply.status === 'appended') context.outbox.deliver(sid, stream, reply)
    }
    await replica.announce('cancel', JSON.stringify({ sid, requestId, params })).catch(() => { /* the runner looks at the log now and then */ })
  }

  async #cancelHere (sid: string, requestId: RpcId, params: Record<string, unknown>): Promise<void> {
    const session = await this.#options.sessions.find(sid)
    const calls = [...session?.calls.values() ?? []].filter(call => call.clientId === requestId)
    for (const call of calls) await session!.cancel(call, params)
  }

  /** Brings the client's answer to the handler that waits for it, wherever it is. */
  async #answer (sid: string, wireId: RpcId, message: RpcResponse | RpcNotification): Promise<void> {
    const { replica } = this.#options
    const owner = replicaOf(wireId)
    if (owner === replica.id) this.#answerHere(sid, message)
    else if (owner === undefined || !await replica.deliver(owner, 'answer', JSON.stringify({ sid, message }))) {
      this.#unclaimed(sid, wireId)
    }
  }

  #answerHere (sid: string, message: RpcResponse | RpcNotification): void {
    const { context } = this.#options
    const wireId = 'method' in message ? message.params?.progressToken as string : message.id as string
    const waiting = context.requests.peek(wireId)
    if (waiting === undefined || waiting.owner.sessionId !== sid) {
      this.#unclaimed(sid, wireId)
    } else if ('method' in message) {
      waiting.owner.receive({ ...message, params: { ...message.params, progressToken: waiting.id } }, {})
    } else {
      context.requests.take(wireId)
      waiting.owner.receive({ ...message, id: waiting.id }, {})
    }
  }

  #unclaimed (sid: string, wireId: RpcId): void {
    const { context } = this.#options
    context.counters.unclaimedAnswers++
    context.warn({ sid, id: wireId }, 'the client answered a request that nobody waits for')
  }
}
