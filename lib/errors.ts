import createError from '@fastify/error'

/** An option of the plugin is wrong or contradicts another one; thrown by `app.register`. */
export const InvalidOption = createError<[string]>('MCP_RESUME_ERR_OPTION', 'fastify-mcp-resume: %s', 500, TypeError)

/** The log cannot be reached or cannot serve now: connection, time-out, LOADING, READONLY, OOM, BUSY and the like. */
export const LogAway = createError<[string]>('MCP_RESUME_ERR_LOG_AWAY', 'The session log cannot be reached: %s', 503)

/** The session is unknown, has expired or was terminated. */
export const SessionGone = createError<[string]>('MCP_RESUME_ERR_SESSION_GONE', 'Session %s not found', 404)

/** A message could not be logged, so it was not sent: the stream is finished, gone, or its queue is full. */
export const NotAppended = createError<[string, string]>('MCP_RESUME_ERR_NOT_APPENDED', 'The message was not logged on stream %s: %s', 500)

/** The request runs already, on a stream of its own: it was sent again. */
export class DuplicateRequest extends Error {
  readonly stream: string

  constructor (stream: string) {
    super(`The request runs already, on stream ${stream}`)
    this.stream = stream
  }
}

/** The host's server factory failed, or its server does not answer. */
export const ServerFailed = createError<[string]>('MCP_RESUME_ERR_SERVER', 'The server factory gave no usable server: %s', 500)

/** The host's server no longer speaks the protocol version that the session negotiated; the session ends. */
export const VersionChanged = createError<[string]>('MCP_RESUME_ERR_VERSION_CHANGED', 'The server does not speak the negotiated protocol version %s', 500)

/** The principal has as many sessions as `maxSessionsPerPrincipal` allows. */
export const TooManySessions = createError<[number]>('MCP_RESUME_ERR_TOO_MANY_SESSIONS', 'The principal has %d sessions already, end one first', 429)

/** What the host asked to send is no notification. */
export const InvalidNotification = createError<[string]>('MCP_RESUME_ERR_NOTIFICATION', 'Not a notification: %s', 500, TypeError)

/**
 * JSON-RPC error codes on the wire. Ours lie outside -32768…-32000, which JSON-RPC and MCP reserve; the others are the
 * specifications' own.
 */
export const RpcCode = {
  parse: -32700,
  invalidRequest: -32600,
  methodNotFound: -32601,
  internal: -32603,
  sessionNotFound: -32001,
  /** The response of a request is lost: it may have run, or not. */
  lost: -31001,
  /** `onGap: 'reject'`: the cursor cannot be resumed without a loss. */
  gap: -31002,
  /** `onFuture: 'reject'`: the cursor does not come from this log. */
  future: -31003,
  /** The session log cannot be reached; the request was not started. */
  away: -31004,
  /** A header or body that this endpoint cannot take. */
  refused: -31005
} as const
