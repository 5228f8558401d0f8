import { Redis } from 'ioredis'

/** What a scenario gets. */
export interface Bench {
  readonly redis: Redis
  readonly redisUrl: string
  /** Start of every key that a scenario writes; they are deleted afterwards. */
  readonly keyPrefix: string
  /** Runs clean-up after the scenario, last registered first. */
  readonly atEnd: (cleanUp: () => unknown) => void
}

/** A ratio that is aimed at. */
export interface Aim {
  readonly what: string
  readonly value: number
  readonly rule: 'at least' | 'at most'
  readonly bound: number
  readonly unit: string
}

export interface Table {
  readonly title: string
  readonly columns: readonly string[]
  readonly rows: ReadonlyArray<readonly string[]>
  readonly aims: readonly Aim[]
}

export type Scenario = (bench: Bench) => Promise<Table>

/** One thing to measure, again and again. */
export type Contestant = () => Promise<number>

const FEWEST_ROUNDS = 3
const LONGEST_MS = 20_000

/**
 * Runs every contestant once a round, so that what else the machine does falls on all alike; fewer rounds on a machine
 * that is slow or busy. The first round is for warming up.
 * @returns the values of each, by name
 */
export async function inRounds<Name extends string> (rounds: number, contestants: Record<Name, Contestant>): Promise<Record<Name, number[]>> {
  const values = Object.fromEntries(Object.keys(contestants).map(name => [name, [] as number[]])) as Record<Name, number[]>
  const deadline = performance.now() + LONGEST_MS
  for (const contestant of Object.values<Contestant>(contestants)) await contestant()
  for (let round = 0; round < rounds && (round < FEWEST_ROUNDS || performance.now() < deadline); round++) {
    for (const name of Object.keys(contestants) as Name[]) values[name].push(await contestants[name]())
  }
  return values
}

export function percentile (values: readonly number[], p: number): number {
  const sorted = [...values].sort((a, b) => a - b)
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * p / 100))]!
}

export function median (values: readonly number[]): number {
  return percentile(values, 50)
}

/** The median of the ratios of two contestants, round by round. */
export function ratio (values: readonly number[], to: readonly number[]): number {
  return median(values.map((value, i) => value / to[i]!))
}

export function whole (value: number): string {
  return Math.round(value).toLocaleString('en')
}
