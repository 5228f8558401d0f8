/**
 * How a server's event IDs count, inferred from the IDs of one uninterrupted stream. An ID is split at its separators;
 * a part that is all digits in every ID and never falls is a number, one that also rises is a counter. So `7`,
 * `stream_12_k3f9` and `47-12-1-k3f9` are all ordered without knowing the server.
 */
export interface IdShape {
  readonly form: 'integer' | 'counted' | 'opaque'
  /** The parts that order two IDs, most significant first. */
  readonly numbers: readonly number[]
  /** Those of them that rise along the stream. */
  readonly counters: readonly number[]
}

const SEPARATORS = /([^0-9A-Za-z]+)/
const NUMBER = /^\d{1,16}$/

/** Infers the shape; one ID alone shows only whether it is a plain integer. */
export function inferIdShape (ids: readonly string[]): IdShape {
  const rows = ids.map(parts)
  const width = ids.length === 0 ? 0 : Math.min(...rows.map(row => row.length))
  const numbers: number[] = []
  const counters: number[] = []
  for (let column = 0; column < width; column++) {
    const cells = rows.map(row => row[column]!)
    if (!cells.every(cell => NUMBER.test(cell))) continue
    if (!cells.every((cell, i) => i === 0 || Number(cell) >= Number(cells[i - 1]))) continue
    numbers.push(column)
    if (Number(cells.at(-1)) > Number(cells[0])) counters.push(column)
  }
  const integers = ids.length > 0 && ids.every(id => NUMBER.test(id))
  if (integers) return { form: 'integer', numbers: [0], counters: [0] }
  if (counters.length === 0) return { form: 'opaque', numbers: [], counters: [] }
  return { form: 'counted', numbers, counters }
}

/** Negative when `a` counts lower than `b`, positive when higher; undefined when the IDs do not say. */
export function compareIds (shape: IdShape, a: string, b: string): number | undefined {
  if (shape.numbers.length === 0) return undefined
  const left = parts(a)
  const right = parts(b)
  for (const column of shape.numbers) {
    const x = left[column]
    const y = right[column]
    // A part that was digits by chance, say of a UUID, need not be digits in another stream's IDs.
    if (x === y) continue
    if (x === undefined || y === undefined || !NUMBER.test(x) || !NUMBER.test(y)) return undefined
    return Number(x) - Number(y)
  }
  return 0
}

/** A well-formed ID that the server cannot have issued yet; undefined when its IDs do not count. */
export function forgeAhead (shape: IdShape, id: string): string | undefined {
  if (shape.counters.length === 0) return undefined
  const pieces = id.split(SEPARATORS)
  for (const column of shape.counters) {
    // Every second piece is a separator.
    const piece = pieces[column * 2]
    if (piece === undefined || !NUMBER.test(piece)) return undefined
    // A counter of milliseconds moves on by itself: an hour is ahead of it, a thousand is not.
    pieces[column * 2] = String(Number(piece) + (piece.length >= 13 ? 3_600_000 : 1000))
  }
  return pieces.join('')
}

/** An ID for a sentence: in quotes, the middle of a long one left out. */
export function quoteId (id: string): string {
  return `“${id.length <= 40 ? id : `${id.slice(0, 22)}…${id.slice(-12)}`}”`
}

function parts (id: string): string[] {
  return id.split(SEPARATORS).filter((_, i) => i % 2 === 0)
}
