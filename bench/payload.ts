/** A progress notification of about 256 bytes of JSON: what every contestant logs and delivers. */
export function message (progressToken: string | number, progress: number): { method: 'notifications/progress', params: { progressToken: string | number, progress: number, message: string } } {
  return { method: 'notifications/progress', params: { progressToken, progress, message: PADDING } }
}

const PADDING = 'x'.repeat(140)

/** The same as the log keeps it. */
export const PAYLOAD = JSON.stringify({ jsonrpc: '2.0', ...message(1, 1000) })
