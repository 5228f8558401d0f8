import { randomInt } from 'node:crypto'

export interface Random {
  readonly seed: number
  /** From `min` (inclusive) to `max` (exclusive). */
  between (min: number, max: number): number
  /** A whole number below `max`. */
  below (max: number): number
}

/** Random numbers that a printed seed brings back: `SEED=… tap test/x.test.ts`. */
export function seededRandom (seed = Number(process.env['SEED'] ?? randomInt(2 ** 31))): Random {
  // mulberry32: small, and the same numbers for the same seed on every machine.
  let state = seed
  const next = (): number => {
    state = (state + 0x6D2B79F5) | 0
    let bits = Math.imul(state ^ (state >>> 15), 1 | state)
    bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits
    return ((bits ^ (bits >>> 14)) >>> 0) / 4294967296
  }
  return {
    seed,
    between: (min, max) => min + (max - min) * next(),
    below: max => Math.floor(max * next())
  }
}
