import { setTimeout as sleep } from 'node:timers/promises'
import { z } from 'zod'

/** What a tool may do while it runs, whichever SDK runs it. */
export interface Call {
  progressToken: string | number | undefined
  signal: AbortSignal
  /** Sends a notification on the stream of the request. */
  notify (notification: Notification): Promise<void>
  /** Sends a log message on the session's standalone stream. */
  announce (data: unknown): Promise<void>
  /** Asks the person behind the client. */
  elicit (params: Question): Promise<Answer>
}

/** What a tool may know of the replica it runs on. */
export interface Host {
  replicaId (): string
  /** Counts one more run for `key`, over all replicas. */
  count (key: string): Promise<number>
}

export interface ToolListing {
  name: string
  description: string
  inputSchema: { type: 'object', [keyword: string]: unknown }
  annotations: { readOnlyHint: boolean }
}

export interface ToolResult {
  content: Array<{ type: 'text', text: string }>
  isError?: boolean
  [key: string]: unknown
}

interface Notification { method: string, params: Record<string, unknown> }
interface Answer { action: string, content?: Record<string, unknown> | undefined }
interface Question {
  message: string
  requestedSchema: { type: 'object', properties: Record<string, { type: 'string' }>, required: string[] }
}

interface Tool {
  description: string
  input: z.ZodObject
  readOnly: boolean
  run (args: unknown, call: Call, host: Host): Promise<string>
}

/** Thrown by a tool to answer with a JSON-RPC error; any other error becomes a result with `isError`. */
export class ToolFailure extends Error {
  // JSON-RPC and MCP reserve -32768 to -32000.
  readonly code = 1001
}

const ms = z.number().int().nonnegative()
const n = z.number().int().positive()

const tools: Record<string, Tool> = {
  echo: tool('Returns its text', true, { text: z.string() },
    async ({ text }) => text),

  slow: tool('Waits, then returns', true, { ms }, async ({ ms }, call) => {
    await sleep(ms, undefined, { signal: call.signal })
    return `slept ${ms}`
  }),

  tick: tool('Reports progress n times, then returns', true, { n, ms, bytes: n.optional() }, async ({ n, ms, bytes = 0 }, call) => {
    for (let i = 1; i <= n; i++) {
      if (ms > 0) await sleep(ms, undefined, { signal: call.signal })
      await call.notify(progress(i, n, `tick ${i}`.padEnd(bytes, '.'), call.progressToken))
    }
    return `ticked ${n}`
  }),

  fail: tool('Waits, then answers a JSON-RPC error', false, { ms }, async ({ ms }, call) => {
    await sleep(ms, undefined, { signal: call.signal })
    throw new ToolFailure(`failed after ${ms}`)
  }),

  ask: tool('Asks the person behind the client', false, {}, async (_args, call) => {
    const { action, content } = await call.elicit({
      message: 'What is the answer?',
      requestedSchema: { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'] }
    })
    return action === 'accept' ? String(content?.['answer']) : action
  }),

  big: tool('Returns a text of so many bytes', true, { bytes: n },
    async ({ bytes }) => 'x'.repeat(bytes)),

  emit: tool('Sends n messages on the standalone stream in the background', false, { n, ms }, async ({ n, ms }, call) => {
    emitAll(n, ms, call).catch(() => { /* the session may be gone before the last one */ })
    return `emitting ${n}`
  }),

  whoami: tool('Names the replica', true, {},
    async (_args, _call, host) => host.replicaId()),

  hit: tool('Returns how often it has run for a key', false, { key: z.string() }, async ({ key }, _call, host) => {
    await sleep(200)
    return String(await host.count(key))
  })
}

/** The answer to `tools/list`. */
export function listTools (): { tools: ToolListing[] } {
  return {
    tools: Object.entries(tools).map(([name, { description, input, readOnly }]) => ({
      name,
      description,
      inputSchema: z.toJSONSchema(input, { io: 'input' }) as ToolListing['inputSchema'],
      annotations: { readOnlyHint: readOnly }
    }))
  }
}

/**
 * The answer to `tools/call`. The SDKs' own dispatcher makes a result of every error, and `fail`
 * has to answer with an error, so the example has its own.
 */
export async function callTool (name: string, args: unknown, call: Call, host: Host): Promise<ToolResult> {
  const tool = Object.hasOwn(tools, name) ? tools[name] : undefined
  if (tool === undefined) return text(`Tool ${name} not found`, true)
  const parsed = tool.input.safeParse(args ?? {})
  if (!parsed.success) return text(`Invalid arguments for tool ${name}: ${z.prettifyError(parsed.error)}`, true)
  try {
    return text(await tool.run(parsed.data, call, host))
  } catch (error) {
    if (error instanceof ToolFailure) throw error
    return text(error instanceof Error ? error.message : String(error), true)
  }
}

function tool<Shape extends z.ZodRawShape> (
  description: string, readOnly: boolean, shape: Shape,
  run: (args: z.infer<z.ZodObject<Shape>>, call: Call, host: Host) => Promise<string>
): Tool {
  const input = z.object(shape)
  return { description, readOnly, input, run: (args, call, host) => run(args as z.infer<typeof input>, call, host) }
}

function text (text: string, isError = false): ToolResult {
  return { content: [{ type: 'text', text }], ...(isError && { isError }) }
}

// Progress needs the token its requester gave; without one a log message shows that the tool lives.
function progress (i: number, total: number, message: string, progressToken: Call['progressToken']): Notification {
  return progressToken === undefined
    ? { method: 'notifications/message', params: { level: 'info', data: { progress: i, total, message } } }
    : { method: 'notifications/progress', params: { progressToken, progress: i, total, message } }
}

async function emitAll (n: number, ms: number, call: Call): Promise<void> {
  for (let i = 1; i <= n; i++) {
    if (ms > 0) await sleep(ms)
    await call.announce({ i })
  }
}
