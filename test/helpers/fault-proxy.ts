import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import type { AddressInfo, Socket } from 'node:net'
import { seededRandom } from './random.ts'
import { resetSocket } from './reset.ts'
import { createCommandParser } from './resp.ts'
import type { RedisCommand } from './resp.ts'
import type { Owner } from './teardown.ts'

/** One connection of a client to Redis through the proxy. */
export interface ProxiedConnection {
  /** Counts from 1 in order of arrival. */
  readonly number: number
  /** Names of the commands it has sent. */
  readonly sent: ReadonlySet<string>
  /** It has sent a SUBSCRIBE of any kind. */
  readonly isSubscriber: boolean
}

export type SelectConnection = (connection: ProxiedConnection) => boolean

/** Milliseconds, or a range from which a seeded generator draws. */
export type Delay = number | { min: number, max: number, seed: number }

/**
 * Q: a TCP proxy in front of Redis that misbehaves on demand. Faults stay until `restore` and
 * also catch connections made later, except `reset`, which is one blow.
 */
export interface FaultProxy {
  /** The Redis URL to give to a replica. */
  readonly url: string
  readonly connections: readonly ProxiedConnection[]
  /** Every reply waits; replies keep their order. */
  delay (delay: Delay, select?: SelectConnection): void
  /** Commands arrive, their replies never do. `restore` resets the connections that lost some. */
  dropReplies (select?: SelectConnection): void
  /** Nothing passes either way, connections stay open; what waited passes after `restore`. */
  stall (select?: SelectConnection): void
  /** New connections are reset at once. */
  refuse (): void
  /** Resets connections; returns how many. */
  reset (select?: SelectConnection): number
  /** The next `times` commands that match are executed, but their connection is reset instead of the reply. */
  loseReplyTo (match: (command: RedisCommand) => boolean, times?: number): void
  restore (): void
  /** How many commands were sent, of all names or of one. */
  count (name?: string): number
  close (): Promise<void>
}

interface Link extends ProxiedConnection {
  sent: Set<string>
  isSubscriber: boolean
  client: Socket
  redis: Socket
  lostReplies: boolean
  flush (): void
}

interface Fault { kind: 'delay' | 'drop' | 'stall', select: SelectConnection, delayMs (): number }

const all: SelectConnection = () => true

/** Starts a proxy in front of the Redis at `redisUrl` on a free port of 127.0.0.1; closed at teardown. */
export async function startFaultProxy (t: Owner, redisUrl: string): Promise<FaultProxy> {
  const target = new URL(redisUrl)
  const links = new Set<Link>()
  const counts = new Map<string, number>()
  let faults: Fault[] = []
  let losing: { match: (command: RedisCommand) => boolean, times: number } | undefined
  let refusing = false
  let arrived = 0

  const server = createServer(accept).listen(0, '127.0.0.1')
  await once(server, 'listening')
  const url = new URL(redisUrl)
  url.hostname = '127.0.0.1'
  url.port = String((server.address() as AddressInfo).port)
  t.teardown(close)

  return {
    url: url.href,
    get connections () { return [...links] },
    delay (delay, select = all) {
      const next = typeof delay === 'number' ? () => delay : draw(delay)
      faults.push({ kind: 'delay', select, delayMs: next })
    },
    dropReplies: (select = all) => { faults.push({ kind: 'drop', select, delayMs: () => 0 }) },
    stall: (select = all) => { faults.push({ kind: 'stall', select, delayMs: () => 0 }) },
    refuse: () => { refusing = true },
    reset,
    loseReplyTo: (match, times = 1) => { losing = { match, times } },
    restore,
    count: name => name === undefined ? [...counts.values()].reduce((sum, n) => sum + n, 0) : counts.get(name.toUpperCase()) ?? 0,
    close
  }

  function accept (client: Socket): void {
    client.on('error', () => {})
    if (refusing) {
      resetSocket(client)
      return
    }
    client.setNoDelay(true)
    const redis = connect({ host: target.hostname, port: Number(target.port || 6379), noDelay: true })
    redis.on('error', () => {})

    const toRedis: Buffer[] = []
    const toClient: Array<{ chunk: Buffer, due: number }> = []
    let timer: NodeJS.Timeout | undefined
    let dueLast = 0
    const link: Link = { number: ++arrived, sent: new Set(), isSubscriber: false, client, redis, lostReplies: false, flush }
    links.add(link)

    let loseReply = false
    const parse = createCommandParser(command => {
      counts.set(command.name, (counts.get(command.name) ?? 0) + 1)
      link.sent.add(command.name)
      if (command.name.endsWith('SUBSCRIBE')) link.isSubscriber = true
      if (losing !== undefined && losing.times > 0 && losing.match(command)) {
        losing.times--
        loseReply = true
      }
    })
    client.on('data', (chunk: Buffer) => {
      toRedis.push(chunk)
      // Counted when it is sent on, so that a count never names what Redis could not have seen.
      flush()
    })
    redis.on('data', (chunk: Buffer) => {
      if (loseReply) {
        // Redis is left with an orderly end, so that it still executes what it has been sent.
        resetSocket(client)
        redis.end()
        return
      }
      if (active('drop', link)) {
        link.lostReplies = true
        return
      }
      const delayMs = active('delay', link)?.delayMs() ?? 0
      dueLast = Math.max(dueLast, performance.now() + delayMs)
      toClient.push({ chunk, due: dueLast })
      flush()
    })
    client.once('close', () => {
      links.delete(link)
      clearTimeout(timer)
      redis.end()
    })
    redis.once('close', () => client.destroy())

    function flush (): void {
      if (active('stall', link)) return
      for (const chunk of toRedis.splice(0)) {
        parse(chunk)
        redis.write(chunk)
      }
      clearTimeout(timer)
      for (let head = toClient[0]; head !== undefined; head = toClient[0]) {
        const waitMs = head.due - performance.now()
        if (waitMs > 0) {
          timer = setTimeout(flush, Math.ceil(waitMs))
          return
        }
        client.write(head.chunk)
        toClient.shift()
      }
    }
  }

  function active (kind: Fault['kind'], link: Link): Fault | undefined {
    return faults.findLast(fault => fault.kind === kind && fault.select(link))
  }

  function reset (select: SelectConnection = all): number {
    const chosen = [...links].filter(select)
    for (const { client } of chosen) resetSocket(client)
    return chosen.length
  }

  function restore (): void {
    faults = []
    losing = undefined
    refusing = false
    // Their replies no longer match their commands.
    reset(link => (link as Link).lostReplies)
    for (const link of links) link.flush()
  }

  async function close (): Promise<void> {
    if (!server.listening) return
    server.close()
    for (const { client, redis } of links) {
      client.destroy()
      redis.destroy()
    }
    await once(server, 'close')
  }
}

function draw ({ min, max, seed }: Exclude<Delay, number>): () => number {
  const { between } = seededRandom(seed)
  return () => between(min, max)
}
