import type { Change, SessionRecord } from '../log/log.ts'

/** A request that tells a server what has changed. */
export interface Lesson {
  /** Only for a server that declares this. */
  readonly capability: 'logging' | 'resources'
  readonly method: string
  readonly params: Record<string, unknown>
}

/** What one SDK server knows of its session's record, which other replicas change too. */
export class KnownRecord {
  #logLevel: string | undefined
  #subscriptions: ReadonlySet<string> = new Set()

  /** The requests that tell the server how the record is now; it counts as told at once, so that nobody tells it twice. */
  learn ({ logLevel, subscriptions }: SessionRecord): Lesson[] {
    const [level, before] = [this.#logLevel, this.#subscriptions]
    if (logLevel === level && subscriptions.length === before.size && subscriptions.every(uri => before.has(uri))) return []
    const now = new Set(subscriptions)
    this.#logLevel = logLevel
    this.#subscriptions = now
    const told = (method: string, uris: string[]): Lesson[] => uris.map(uri => ({ capability: 'resources', method, params: { uri } }))
    return [
      ...logLevel === undefined || logLevel === level ? [] : [{ capability: 'logging', method: 'logging/setLevel', params: { level: logLevel } } as const],
      ...told('resources/subscribe', [...now].filter(uri => !before.has(uri))),
      ...told('resources/unsubscribe', [...before].filter(uri => !now.has(uri)))
    ]
  }

  /** A change that the server has accepted itself. */
  note (change: Change): void {
    if (change.kind === 'logLevel') this.#logLevel = change.level
    if (change.kind === 'subscribe') this.#subscriptions = new Set([...this.#subscriptions, change.uri])
    if (change.kind === 'unsubscribe') this.#subscriptions = new Set([...this.#subscriptions].filter(uri => uri !== change.uri))
  }
}
