import type { IncomingMessage } from 'node:http'

export interface OriginPolicy {
  /** Origins that may call besides the server's own; `'*'` takes all. */
  readonly allowedOrigins: readonly string[] | '*'
  /** Host names that the `Host` header may carry; undefined takes all, except from a browser on loopback. */
  readonly allowedHosts: readonly string[] | undefined
}

const LOOPBACK_NAME = /^(localhost|127(?:\.\d+){3}|\[::1\])$/
const LOOPBACK_ADDRESS = /^(127\.|::1$|::ffff:127\.)/

/**
 * Against DNS rebinding: a page of another origin, or of a foreign name that resolves to this machine, may not reach the
 * endpoint. Requests without `Origin` come from no browser script and pass, if their host is allowed.
 *
 * @returns the reason for a refusal, or undefined.
 */
export function refuseOrigin (request: IncomingMessage, { allowedOrigins, allowedHosts }: OriginPolicy): string | undefined {
  const { origin } = request.headers
  // HTTP/2 has a pseudo-header in the place of `Host`.
  const host = request.headers.host ?? String(request.headers[':authority'] ?? '')
  const name = host.toLowerCase().replace(/:\d+$/, '')
  if (allowedHosts !== undefined && !allowedHosts.includes(name)) return 'Host is not one of allowedHosts'
  if (origin === undefined || allowedOrigins === '*' || allowedOrigins.includes(origin)) return undefined
  const sameOrigin = origin.toLowerCase().replace(/^https?:\/\//, '') === host.toLowerCase()
  const local = LOOPBACK_ADDRESS.test(request.socket.localAddress ?? '')
  if (sameOrigin && (!local || LOOPBACK_NAME.test(name) || allowedHosts !== undefined)) return undefined
  return 'Origin is not one of allowedOrigins'
}
