/** Which of the two media types of this endpoint a client takes. */
export interface Accepted {
  readonly json: boolean
  readonly sse: boolean
}

/** Reads an `Accept` header (RFC 9110 section 12.5.1) for JSON and SSE. No header accepts everything. */
export function parseAccept (header: string | undefined): Accepted {
  if (header === undefined || header.trim() === '') return { json: true, sse: true }
  const ranges = header.toLowerCase().split(',').map(range => {
    const [type, ...params] = range.split(';').map(part => part.trim())
    const q = params.find(param => /^q\s*=/.test(param))
    return { type: type!, refused: q !== undefined && Number(q.slice(q.indexOf('=') + 1)) === 0 }
  })
  return { json: takes(ranges, 'application', 'application/json'), sse: takes(ranges, 'text', 'text/event-stream') }
}

/** The most specific range decides. */
function takes (ranges: ReadonlyArray<{ type: string, refused: boolean }>, group: string, type: string): boolean {
  for (const range of [type, `${group}/*`, '*/*']) {
    const found = ranges.find(candidate => candidate.type === range)
    if (found !== undefined) return !found.refused
  }
  return false
}
