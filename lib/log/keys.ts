/** Every key and channel name. A session's keys share one hash slot; nothing in a name is chosen by a client. */
export class Keys {
  /** ZSET of session ID -> time of expiry: serves broadcasts and counts, decides nothing. */
  readonly sessions: string
  /** What every replica of this prefix listens to. */
  readonly everyone: string
  /** Prefix of a replica's own channel. */
  readonly replicas: string
  readonly #prefix: string

  constructor (prefix: string) {
    this.#prefix = prefix
    this.sessions = `${prefix}sessions`
    this.everyone = `${prefix}everyone`
    this.replicas = `${prefix}replica:`
  }

  /** The session's hash and its log. */
  session (sid: string): [hash: string, log: string] {
    const hash = `${this.#prefix}{${sid}}`
    return [hash, `${hash}:log`]
  }

  /** ZSET of a principal's session IDs -> time of creation; the principal is a hash. */
  principal (principal: string): string {
    return `${this.#prefix}principal:${principal}`
  }

  channel (replica: string): string {
    return this.replicas + replica
  }

  lease (replica: string): string {
    return `${this.#prefix}lease:${replica}`
  }
}
