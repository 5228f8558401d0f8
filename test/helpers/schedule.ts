import { setTimeout as sleep } from 'node:timers/promises'
import type { ToolCall, PluginApp } from './plugin-app.ts'
import type { Random } from './random.ts'
import { initialize, type Answer, type Call, type Session } from './sse-client.ts'
import { cursorOf, eventsOf } from './stream-events.ts'
import { until, within } from './wait.ts'

/** A tool call that does what the schedule says. */
export interface Puppet { readonly call: ToolCall, finish (text: string): void }

/** A stream as the client and the model know it. */
interface Track {
  readonly name: string
  /** What has been sent on it: numbers, and the text of a result. */
  readonly sent: Array<number | string>
  readonly got: Array<number | string>
  state: 'running' | 'finished' | 'cancelled'
  cursor: string | undefined
  /** The connection that is read, and those that were left without a word. */
  open: Answer | undefined
  readonly left: Answer[]
  puppet: Puppet | undefined
  id: string | number | undefined
}

const WEIGHTS = { request: 3, emit: 8, finish: 2, cut: 4, leave: 2, resume: 6, move: 2, cancel: 1, delete: 0.4 }
type Step = keyof typeof WEIGHTS

/**
 * One random life of a session against a plain model of it: a stream is a list, and whatever happens to connections and
 * replicas, the client gets that list, once and in order.
 */
export class Schedule {
  readonly trace: string[] = []
  readonly #apps: readonly PluginApp[]
  readonly #puppets: Map<string, (puppet: Puppet) => void>
  readonly #random: Random
  readonly #tracks: Track[] = [newTrack('standalone')]
  #session!: Session
  #home = 0
  #gone = false
  #calls = 0

  constructor (apps: readonly PluginApp[], puppets: Map<string, (puppet: Puppet) => void>, random: Random) {
    this.#apps = apps
    this.#puppets = puppets
    this.#random = random
  }

  get sessionId (): string {
    return this.#session.sessionId
  }

  get gone (): boolean {
    return this.#gone
  }

  async run (steps: number): Promise<void> {
    this.#session = await initialize(this.#url)
    for (let i = 0; i < steps && !this.#gone; i++) await this.#step()
    if (!this.#gone) await this.#settle()
    for (const { left, open } of this.#tracks) for (const answer of [...left, ...open === undefined ? [] : [open]]) answer.cut()
    if (!this.#gone) await this.#at().del()
  }

  get #url (): string {
    return this.#apps[this.#home]!.url
  }

  #at (): Session {
    return this.#session.at(this.#url)
  }

  #pick<T> (items: readonly T[]): T | undefined {
    return items[this.#random.below(items.length)]
  }

  async #step (): Promise<void> {
    const step = this.#draw()
    const running = this.#tracks.filter(({ state, puppet }) => state === 'running' && puppet !== undefined)
    switch (step) {
      case 'request': if (running.length < 3) await this.#request(); break
      case 'emit': await this.#emit(this.#pick([this.#tracks[0]!, ...running])!); break
      case 'finish': await this.#finish(this.#pick(running)); break
      case 'cut': await this.#cut(this.#pick(this.#tracks.filter(({ open }) => open !== undefined))); break
      case 'leave': this.#leave(this.#pick(this.#tracks.filter(({ open }) => open !== undefined))); break
      case 'resume': await this.#resume(this.#pick(this.#tracks.filter(({ open }) => open === undefined))); break
      case 'move': this.#note(`move to ${this.#home = this.#random.below(this.#apps.length)}`); break
      case 'cancel': await this.#cancel(this.#pick(running)); break
      case 'delete': await this.#delete()
    }
  }

  #draw (): Step {
    let at = this.#random.between(0, Object.values(WEIGHTS).reduce((sum, weight) => sum + weight))
    for (const [step, weight] of Object.entries(WEIGHTS)) {
      at -= weight
      if (at < 0) return step as Step
    }
    return 'emit'
  }

  async #request (): Promise<void> {
    const name = `call-${++this.#calls}`
    const key = `${this.sessionId} ${name}`
    const puppet = new Promise<Puppet>(resolve => this.#puppets.set(key, resolve))
    const call: Call = await this.#at().call('puppet', { key })
    const track = newTrack(name)
    track.puppet = await within(puppet, `${name} to start`)
    track.open = call
    track.id = call.id
    this.#tracks.push(track)
    this.#note(`request ${name} on ${this.#home}`)
  }

  async #emit (track: Track): Promise<void> {
    for (let n = 1 + this.#random.below(3); n > 0; n--) {
      const data = track.sent.length + 1
      track.sent.push(data)
      if (track.puppet !== undefined) await track.puppet.call.emit(data)
      else await this.#apps[this.#home]!.app.mcp.notify(this.sessionId, { method: 'notifications/message', params: { level: 'info', data } })
    }
    this.#note(`emit on ${track.name} up to ${track.sent.length}`)
  }

  async #finish (track: Track | undefined): Promise<void> {
    if (track === undefined) return
    track.puppet!.finish('done')
    track.sent.push('done')
    track.state = 'finished'
    this.#note(`finish ${track.name}`)
  }

  async #cut (track: Track | undefined): Promise<void> {
    if (track === undefined) return
    this.#note(`cut ${track.name}`)
    const { open } = track
    open!.cut()
    await open!.stream.ended
    this.#collect(track)
  }

  /** The client turns away from a connection that stays open: a network that is gone without a word. */
  #leave (track: Track | undefined): void {
    if (track === undefined) return
    this.#note(`leave ${track.name}`)
    track.left.push(track.open!)
    this.#collect(track)
  }

  async #resume (track: Track | undefined): Promise<void> {
    if (track === undefined) return
    this.#note(`resume ${track.name} with ${track.cursor ?? 'nothing'} on ${this.#home}`)
    if (track.name !== 'standalone' && track.cursor === undefined) return
    const answer = await this.#at().listen(track.cursor)
    if (answer.status === 204) {
      if (track.state === 'running' || (track.state === 'finished' && !whole(track))) throw new Error(`204 for ${track.name} although ${difference(track)}`)
      return
    }
    if (answer.status !== 200) throw new Error(`${track.name} was answered ${answer.status} ${answer.body}`)
    if (!/^(resumed|fresh);/.test(String(answer.headers['mcp-resume']))) throw new Error(`${track.name}: ${String(answer.headers['mcp-resume'])}`)
    track.open = answer
  }

  async #cancel (track: Track | undefined): Promise<void> {
    if (track === undefined) return
    this.#note(`cancel ${track.name} on ${this.#home}`)
    await this.#at().notify('notifications/cancelled', { requestId: track.id })
    track.state = 'cancelled'
    await until(() => track.puppet!.call.signal.aborted, `${track.name} to be aborted`)
  }

  async #delete (): Promise<void> {
    this.#note(`delete on ${this.#home}`)
    const { status } = await this.#at().del()
    if (status !== 204) throw new Error(`DELETE was answered ${status}`)
    this.#gone = true
    for (const app of this.#apps) {
      const answer = await this.#session.at(app.url).listen()
      if (answer.status !== 404) throw new Error(`a deleted session was answered ${answer.status}`)
    }
    for (const { open } of this.#tracks) if (open !== undefined) await within(open.stream.ended, 'a stream of the deleted session to end')
  }

  /** Everything ends; then the client has, over all its connections, what was sent. */
  async #settle (): Promise<void> {
    for (const track of this.#tracks) if (track.state === 'running' && track.puppet !== undefined) await this.#finish(track)
    for (const track of this.#tracks) {
      for (let tries = 0; !whole(track); tries++) {
        if (tries === 20) throw new Error(`${track.name} never became whole: ${difference(track)}`)
        this.#home = this.#random.below(this.#apps.length)
        if (track.open === undefined) await this.#resume(track)
        if (track.open === undefined) {
          if (track.cursor === undefined) break
          continue
        }
        const { stream } = track.open
        const enough = (): boolean => !stream.isOpen || eventsOf(stream.frames).length + track.got.length >= track.sent.length + 1
        for (const due = performance.now() + 5000; !enough() && performance.now() < due;) await sleep(2)
        await sleep(1)
        this.#collect(track)
      }
      // A call whose client never got an ID has nothing to come back with.
      if (track.cursor !== undefined && !whole(track)) throw new Error(`${track.name}: ${difference(track)}`)
      if (track.got.some((item, i) => item !== track.sent[i])) throw new Error(`${track.name}: ${difference(track)}`)
    }
  }

  /** Takes over what the open connection has brought, and forgets the connection. */
  #collect (track: Track): void {
    const { frames } = track.open!.stream
    for (const { message } of eventsOf(frames)) {
      if (message?.method === 'notifications/message') track.got.push(message.params.data)
      else if (message?.result !== undefined) track.got.push(message.result.content[0].text)
    }
    track.cursor = cursorOf(frames) ?? track.cursor
    track.open = undefined
  }

  #note (text: string): void {
    this.trace.push(text)
  }
}

function newTrack (name: string): Track {
  return { name, sent: [], got: [], state: 'running', cursor: undefined, open: undefined, left: [], puppet: undefined, id: undefined }
}

function whole ({ sent, got }: Track): boolean {
  return sent.length === got.length
}

function difference ({ sent, got, state }: Track): string {
  return `${state}, sent ${sent.join()}, got ${got.join()}`
}
