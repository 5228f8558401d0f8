import { LogAway } from '../errors.ts'
import { STANDALONE } from '../event-id.ts'
import type { Carriers } from '../carriers.ts'
import type { Counters } from '../counters.ts'
import type { Delivery } from '../delivery.ts'
import type { Lease } from '../lease.ts'
import type { Log } from '../log/log.ts'
import { newTag } from '../log/tags.ts'
import type { Outbox } from '../outbox.ts'
import type { Replica } from '../replica.ts'
import { encodeJson } from '../sse.ts'
import { lostResponse } from './lost.ts'

export interface WatchOptions {
  readonly log: Log
  readonly replica: Replica
  readonly lease: Lease
  readonly carriers: Carriers
  readonly outbox: Outbox
  readonly counters: Counters
  /** Whether the request of this stream runs here. */
  readonly runs: (sid: string, stream: string) => boolean
  readonly warn: (details: object, message: string) => void
}

const PERIOD_MS = 2000

/**
 * Settles the requests that nobody runs any more. A replica that carries the stream of such a request asks after its
 * runner once a period: a dead one (its lease is gone), or one that knows of no such request, leaves it lost. The
 * response is appended on condition that nothing else was since, so it is settled once, whoever notices.
 */
export class Watch {
  readonly #options: WatchOptions
  readonly #timer: NodeJS.Timeout

  constructor (options: WatchOptions) {
    this.#options = options
    const { replica, runs } = options
    replica.on('runs', body => {
      const { from, streams } = JSON.parse(body) as { from: string, streams: Array<[sid: string, stream: string]> }
      const absent = streams.filter(([sid, stream]) => !runs(sid, stream))
      if (absent.length > 0) replica.send(from, 'absent', JSON.stringify(absent)).catch(() => { /* it asks again */ })
    })
    replica.on('absent', body => {
      for (const [sid, stream] of JSON.parse(body) as Array<[string, string]>) {
        for (const delivery of this.#waiting()) {
          if (delivery.sid === sid && delivery.stream === stream) void this.#settle(delivery)
        }
      }
    })
    this.#timer = setInterval(() => { void this.#look() }, PERIOD_MS).unref()
  }

  close (): void {
    clearInterval(this.#timer)
  }

  async #look (): Promise<void> {
    const { replica, lease, runs } = this.#options
    const byRunner = new Map<string, Delivery[]>()
    for (const delivery of this.#waiting()) {
      const { runner } = delivery
      if (runner === replica.id) {
        if (!runs(delivery.sid, delivery.stream)) void this.#settle(delivery)
      } else {
        byRunner.set(runner, [...byRunner.get(runner) ?? [], delivery])
      }
    }
    if (byRunner.size === 0) return
    try {
      const dead = await lease.dead([...byRunner.keys()])
      for (const [runner, deliveries] of byRunner) {
        if (dead.has(runner)) for (const delivery of deliveries) void this.#settle(delivery)
        else await replica.send(runner, 'runs', JSON.stringify({ from: replica.id, streams: deliveries.map(({ sid, stream }) => [sid, stream]) }))
      }
    } catch {
      // Redis is away; the next look tells.
    }
  }

  * #waiting (): Iterable<Delivery> {
    for (const delivery of this.#options.carriers.all()) {
      if (delivery.stream !== STANDALONE && !delivery.muted && !delivery.finished && !delivery.connection.closed) yield delivery
    }
  }

  async #settle (delivery: Delivery): Promise<void> {
    const { log, replica, outbox, counters, warn } = this.#options
    const { sid, stream, carrier, position } = delivery
    try {
      const state = await log.tick(sid, stream, carrier, position)
      if (state === undefined || state.finished || state.request === undefined) return
      const reply = await log.append(sid, {
        stream,
        events: [{ tag: newTag(), payload: encodeJson(lostResponse(state.request)), final: true }],
        token: { replica: replica.id, n: outbox.nextToken() },
        expect: state.newest
      })
      if (reply.status !== 'appended') return
      counters.lost++
      warn({ sid, stream, runner: state.runner }, 'a request was settled as lost: nobody runs it any more')
      outbox.deliver(sid, stream, reply)
    } catch (error) {
      if (!(error instanceof LogAway)) throw error
    }
  }
}
