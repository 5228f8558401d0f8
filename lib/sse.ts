/**
 * text/event-stream as this project writes it: LF only, whole frames, every line with a colon, one data line a message
 * (DESIGN.md section 6).
 */

/** A message, with its event ID when it has one. */
export function encodeMessage (id: string | undefined, payload: string): string {
  return id === undefined ? `data: ${payload}\n\n` : `id: ${id}\ndata: ${payload}\n\n`
}

/** A frame that only moves the client's cursor; with `retryMs`, the last one before the server ends the stream. */
export function encodeCursor (id: string, retryMs?: number): string {
  const retry = retryMs === undefined ? '' : `retry: ${retryMs}\n`
  return `id: ${id}\n${retry}data: \n\n`
}

/** A reconnection delay for clients that cannot read empty data. */
export function encodeRetry (retryMs: number): string {
  return `retry: ${retryMs}\n\n`
}

/** A comment between two frames, without the blank line: some clients count empty lines that end no event. */
export function encodeComment (text: string): string {
  return `: ${text}\n`
}

const LINE_ENDS = /[\u0085\u2028\u2029]/
const ALL_LINE_ENDS = /[\u0085\u2028\u2029]/g

/**
 * A JSON-RPC message as one line. U+0085, U+2028 and U+2029 are legal in JSON and no line ends in SSE, but many
 * parsers split there, so they are escaped.
 *
 * @throws TypeError when the message is not JSON (a cycle, a BigInt).
 */
export function encodeJson (message: unknown): string {
  const json = JSON.stringify(message)
  if (!LINE_ENDS.test(json)) return json
  return json.replace(ALL_LINE_ENDS, char => `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`)
}
