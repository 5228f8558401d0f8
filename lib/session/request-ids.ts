import type { RpcId } from './jsonrpc.ts'

/** Whose request it is, and its id in that SDK server. */
export interface ServerRequest<Owner> {
  readonly owner: Owner
  readonly id: RpcId
  /** The stream of the call that it was made in. */
  readonly stream: string | undefined
}

const WIRE_ID = /^r([0-9a-z]{8})\.([1-9][0-9]{0,15})$/

/**
 * Ids of the requests that SDK servers of this replica send to clients. Every SDK server counts from 0, so on the wire
 * they are named `r<replica>.<n>`: unique over replicas and restarts, never all digits, and they say where the waiting
 * handler is.
 */
export class ServerRequests<Owner> {
  readonly #replica: string
  readonly #waiting = new Map<string, ServerRequest<Owner>>()
  #last = 0

  constructor (replica: string) {
    this.#replica = replica
  }

  get size (): number {
    return this.#waiting.size
  }

  /** A wire id for a request of `owner`, which waits for its answer from now on. */
  name (owner: Owner, id: RpcId, stream: string | undefined): string {
    const wireId = `r${this.#replica}.${++this.#last}`
    this.#waiting.set(wireId, { owner, id, stream })
    return wireId
  }

  /** Its owner gives a request up: it waits no longer. */
  withdraw (owner: Owner, id: RpcId): { wireId: string, stream: string | undefined } | undefined {
    for (const [wireId, request] of this.#waiting) {
      if (request.owner !== owner || request.id !== id) continue
      this.#waiting.delete(wireId)
      return { wireId, stream: request.stream }
    }
    return undefined
  }

  /** Whether any request of `owner` waits. */
  waits (owner: Owner): boolean {
    for (const request of this.#waiting.values()) {
      if (request.owner === owner) return true
    }
    return false
  }

  peek (wireId: string): ServerRequest<Owner> | undefined {
    return this.#waiting.get(wireId)
  }

  /** The waiting request, which waits no longer. */
  take (wireId: string): ServerRequest<Owner> | undefined {
    const request = this.#waiting.get(wireId)
    this.#waiting.delete(wireId)
    return request
  }

  forget (owner: Owner): void {
    for (const [wireId, request] of this.#waiting) {
      if (request.owner === owner) this.#waiting.delete(wireId)
    }
  }
}

/** The replica that a wire id names. */
export function replicaOf (wireId: unknown): string | undefined {
  return typeof wireId === 'string' ? WIRE_ID.exec(wireId)?.[1] : undefined
}
