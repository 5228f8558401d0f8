import { startBalancer, type Balancer, type Exchange } from '../test/helpers/balancer.ts'
import { startReplica, type Replica } from '../test/helpers/replica.ts'
import type { Owner } from '../test/helpers/teardown.ts'

export interface Check { readonly scene: string, readonly claim: string, readonly holds: boolean }

const colour = process.stdout.isTTY && process.env.NO_COLOR === undefined
const paint = (code: number, text: string): string => colour ? `\u001b[${code}m${text}\u001b[0m` : text

/** What the scenes share: replicas behind a round-robin balancer, the claims they check, and what they print. */
export class Stage implements Owner {
  readonly checks: Check[] = []
  balancer!: Balancer
  readonly env: Record<string, string | number>
  readonly #cleanUps: Array<() => unknown> = []
  readonly #replicas = new Map<string, Replica>()
  readonly #names = new Map<string, string>()
  #scene = ''

  constructor (env: Record<string, string | number>) {
    this.env = env
  }

  teardown (cleanUp: () => unknown): void {
    this.#cleanUps.push(cleanUp)
  }

  async open (replicas: number): Promise<void> {
    const started = await Promise.all(Array.from({ length: replicas }, () => this.start()))
    this.balancer = await startBalancer(this, started.map(({ url }) => url))
  }

  /** Starts one more replica, under the next letter. */
  async start (): Promise<Replica> {
    const replica = await startReplica(this, this.env)
    this.#replicas.set(replica.url, replica)
    this.#names.set(replica.url, String.fromCharCode(65 + this.#names.size))
    return replica
  }

  replica (url: string | undefined): Replica {
    const replica = this.#replicas.get(url ?? '')
    if (replica === undefined) throw new Error(`no replica at ${url}`)
    return replica
  }

  /** A replica's letter, which the printed lines use. */
  name (url: string | undefined): string {
    return this.#names.get(url ?? '') ?? '?'
  }

  scene (title: string): void {
    this.#scene = title
    process.stdout.write(`\n${paint(1, title)}\n`)
  }

  show (text: string): void {
    process.stdout.write(`  ${paint(2, text.length > 150 ? `${text.slice(0, 147)}...` : text)}\n`)
  }

  check (claim: string, holds: boolean): void {
    this.checks.push({ scene: this.#scene, claim, holds })
    process.stdout.write(`  ${holds ? paint(32, 'holds') : paint(31, 'FAILS')}  ${claim}\n`)
  }

  /** Prints a request as the balancer saw it. */
  showExchange ({ method, headers, upstream, status, responseHeaders }: Exchange): void {
    const cursor = headers['last-event-id']
    const outcome = responseHeaders?.['mcp-resume']
    this.show([
      `${method} -> ${this.name(upstream)} ${status}`,
      ...cursor === undefined ? [] : [`Last-Event-ID: ${String(cursor)}`],
      ...outcome === undefined ? [] : [`Mcp-Resume: ${String(outcome)}`]
    ].join('  '))
  }

  /** Ends everything that was started, the last first. */
  async close (): Promise<void> {
    for (const cleanUp of this.#cleanUps.reverse()) await cleanUp()
  }

  /** @returns whether every check held, of as many as there should be */
  report (expected: number): boolean {
    const width = Math.max(...this.checks.map(({ scene }) => scene.length))
    process.stdout.write(`\n${paint(1, 'What was checked')}\n`)
    for (const { scene, claim, holds } of this.checks) {
      process.stdout.write(`  ${holds ? paint(32, 'holds') : paint(31, 'FAILS')}  ${scene.padEnd(width)}  ${claim}\n`)
    }
    const held = this.checks.filter(({ holds }) => holds).length
    process.stdout.write(`\ndemo: ${held} of ${expected} checks hold\n`)
    return held === expected && this.checks.length === expected
  }
}
