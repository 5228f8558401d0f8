import { createServer, request } from 'node:http'
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http'
import { connect } from 'node:net'
import type { AddressInfo, Socket } from 'node:net'
import { once } from 'node:events'
import { resetSocket } from './reset.ts'
import type { Owner } from './teardown.ts'

/** One request that went through the balancer. */
export interface Exchange {
  readonly method: string
  readonly path: string
  readonly headers: IncomingHttpHeaders
  /** The target that served it, as given in `targets`; undefined until one is connected. */
  readonly upstream: string | undefined
  /** The status the client got. */
  readonly status: number | undefined
  readonly responseHeaders: IncomingHttpHeaders | undefined
  /** Bytes of body towards the client. */
  readonly bytes: number
  readonly isOpen: boolean
}

export type Select = (exchange: Exchange) => boolean

/** A balancer without affinity: every single request goes to the next target. */
export interface Balancer {
  /** Its own address, with the path of the first target. */
  readonly url: string
  /** Every request so far, in order of arrival. */
  readonly requests: readonly Exchange[]
  /** Where requests go, by URL; assign to switch. Those under way stay where they are. */
  targets: string[]
  /** CUT: resets the client sockets of running requests; returns how many. */
  cut (select?: Select): number
  /** HOLE: stops forwarding both ways without a FIN, until `heal`; returns how many. */
  hole (select?: Select): number
  heal (): void
  close (): Promise<void>
}

export interface BalancerOptions {
  /** Ends a running request's connections after so long without a byte either way; 0 = never. */
  idleMs?: number
}

interface Running extends Exchange {
  upstream: string | undefined
  status: number | undefined
  responseHeaders: IncomingHttpHeaders | undefined
  bytes: number
  isOpen: boolean
  holed: boolean
  client: Socket
  /** Ends both connections; what the client sees is the argument's business. */
  end (endClient: (socket: Socket) => void): void
  /** Goes on after a hole. */
  goOn (): void
}

const HOP_BY_HOP = new Set(['connection', 'keep-alive', 'transfer-encoding', 'upgrade', 'proxy-connection', 'te', 'trailer'])

/** Starts a balancer on a free port of 127.0.0.1; closed at teardown. */
export async function startBalancer (t: Owner, targets: string[], { idleMs = 0 }: BalancerOptions = {}): Promise<Balancer> {
  const requests: Running[] = []
  let turn = 0
  const server = createServer((incoming, outgoing) => {
    forward(incoming, outgoing).catch(error => outgoing.destroy(error))
  })
  server.on('clientError', (_error, socket) => socket.destroy())
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  t.teardown(close)

  const balancer: Balancer = {
    url: `http://127.0.0.1:${port}${new URL(targets[0]!).pathname}`,
    requests,
    targets,
    cut: select => each(select, exchange => exchange.end(resetSocket)),
    hole: select => each(select, exchange => { exchange.holed = true }),
    heal: () => { for (const exchange of requests) if (exchange.holed) exchange.goOn() },
    close
  }
  return balancer

  async function forward (incoming: IncomingMessage, outgoing: ServerResponse): Promise<void> {
    const exchange = record(incoming, outgoing)
    const connected = await connectNext(balancer.targets)
    if (!exchange.isOpen) {
      connected?.socket.destroy()
      return
    }
    if (connected === undefined) {
      exchange.status = 502
      outgoing.writeHead(502).end()
      return
    }
    exchange.upstream = connected.target
    relay(exchange, incoming, outgoing, connected.socket, idleMs)
  }

  function record (incoming: IncomingMessage, outgoing: ServerResponse): Running {
    const exchange: Running = {
      method: incoming.method!,
      path: incoming.url!,
      headers: incoming.headers,
      upstream: undefined,
      status: undefined,
      responseHeaders: undefined,
      bytes: 0,
      isOpen: true,
      holed: false,
      client: incoming.socket,
      end: endClient => endClient(incoming.socket),
      goOn: () => {}
    }
    requests.push(exchange)
    outgoing.once('close', () => { exchange.isOpen = false })
    return exchange
  }

  // A target that refuses the connection is passed over, as any balancer with redispatch does.
  async function connectNext (targets: string[]): Promise<{ target: string, socket: Socket } | undefined> {
    for (let tries = 0; tries < targets.length; tries++) {
      const target = targets[turn++ % targets.length]!
      const { hostname, port } = new URL(target)
      const socket = connect({ host: hostname, port: Number(port), noDelay: true })
      try {
        await once(socket, 'connect')
        return { target, socket }
      } catch {
        socket.destroy()
      }
    }
    return undefined
  }

  function each (select: Select = () => true, act: (exchange: Running) => void): number {
    const chosen = requests.filter(exchange => exchange.isOpen && select(exchange))
    for (const exchange of chosen) act(exchange)
    return chosen.length
  }

  async function close (): Promise<void> {
    if (!server.listening) return
    // Also those whose client has gone while they were held.
    for (const exchange of requests) exchange.end(socket => socket.destroy())
    server.close()
    server.closeAllConnections()
    await once(server, 'close')
  }
}

// Streams one request and its response; a held (holed) exchange forwards nothing, neither bytes nor ends.
function relay (exchange: Running, incoming: IncomingMessage, outgoing: ServerResponse, upstream: Socket, idleMs: number): void {
  const headers = Object.fromEntries(Object.entries(incoming.headers).filter(([name]) => !HOP_BY_HOP.has(name)))
  const forwarded = request({ method: incoming.method, path: incoming.url, headers, createConnection: () => upstream })
  let response: IncomingMessage | undefined
  let idleTimer: NodeJS.Timeout | undefined
  const held: Array<() => void> = []
  const pass = (action: () => void): void => { exchange.holed ? held.push(action) : action() }

  exchange.end = endClient => {
    exchange.holed = false
    forwarded.destroy()
    upstream.destroy()
    endClient(exchange.client)
  }
  exchange.goOn = () => {
    exchange.holed = false
    touch()
    for (const action of held.splice(0)) action()
  }

  touch()
  incoming.on('data', (chunk: Buffer) => pass(() => {
    touch()
    if (!forwarded.write(chunk)) {
      incoming.pause()
      forwarded.once('drain', () => incoming.resume())
    }
  }))
  incoming.on('end', () => pass(() => forwarded.end()))
  incoming.on('error', () => {})
  outgoing.on('error', () => {})
  outgoing.once('close', () => {
    clearTimeout(idleTimer)
    pass(() => forwarded.destroy())
  })

  forwarded.on('error', () => pass(() => outgoing.destroy()))
  forwarded.once('response', from => pass(() => {
    touch()
    response = from
    exchange.status = from.statusCode
    exchange.responseHeaders = from.headers
    outgoing.writeHead(from.statusCode!, endToEnd(from.rawHeaders))
    outgoing.flushHeaders()
    from.on('data', (chunk: Buffer) => {
      // Not read on while held, so that the replica's socket fills up as it does on a dead line.
      if (exchange.holed) from.pause()
      pass(() => write(chunk))
    })
    from.on('end', () => pass(() => outgoing.end()))
    // Ended early: the client has to see that it was.
    from.on('close', () => { if (!from.complete) pass(() => outgoing.destroy()) })
    from.on('error', () => {})
    if (from.destroyed && !from.complete) outgoing.destroy()
  }))

  function write (chunk: Buffer): void {
    touch()
    exchange.bytes += chunk.length
    if (outgoing.write(chunk)) {
      response!.resume()
    } else {
      response!.pause()
      outgoing.once('drain', () => response!.resume())
    }
  }

  function touch (): void {
    if (idleMs === 0) return
    clearTimeout(idleTimer)
    idleTimer = setTimeout(() => { if (!exchange.holed) exchange.end(socket => socket.destroy()) }, idleMs)
  }
}

function endToEnd (rawHeaders: string[]): string[] {
  return rawHeaders.filter((_text, i) => !HOP_BY_HOP.has(rawHeaders[i - i % 2]!.toLowerCase()))
}
