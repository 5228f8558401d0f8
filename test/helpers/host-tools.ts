import { setTimeout as sleep } from 'node:timers/promises'
import { McpServer as McpServer1 } from '@modelcontextprotocol/sdk/server/mcp.js'
import { CallToolRequestSchema, ListToolsRequestSchema, SubscribeRequestSchema, UnsubscribeRequestSchema } from '@modelcontextprotocol/sdk/types.js'
import { McpServer as McpServer2 } from '@modelcontextprotocol/server'
import type { McpServerLike } from '../../lib/session/context.ts'

/** What a handler went through, for the test to look at. */
export interface Happening {
  readonly key: string
  readonly what: 'started' | 'aborted' | 'ended' | 'subscribe' | 'unsubscribe'
}

interface Call {
  readonly name: string
  readonly args: any
  readonly signal: AbortSignal
  notify (notification: any): Promise<void>
  announce (level: string, data: unknown): Promise<void>
  elicit (message: string, options: object): Promise<{ action: string, content?: any }>
  /** Outside of the request. */
  elicitAlone (message: string): Promise<{ action: string, content?: any }>
}

type Note = (happening: Happening) => void

const requestedSchema = { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'] }
const everything = {
  logging: {},
  tools: { listChanged: true },
  prompts: { listChanged: true },
  resources: { listChanged: true, subscribe: true }
}

/** A server whose tools tell the test what becomes of them, on either SDK. */
export function hostServer (sdk: 1 | 2, note: Note, sessionId: string, capabilities: Partial<typeof everything> = everything): McpServerLike {
  const info = { name: 'host', version: '1' }
  const subscription = (what: 'subscribe' | 'unsubscribe', uri: string): object => {
    note({ key: uri, what })
    return {}
  }
  if (sdk === 1) {
    const mcp = new McpServer1(info, { capabilities })
    mcp.server.setRequestHandler(ListToolsRequestSchema, () => listTools() as any)
    if (capabilities.resources !== undefined) {
      mcp.server.setRequestHandler(SubscribeRequestSchema, ({ params }) => subscription('subscribe', params.uri))
      mcp.server.setRequestHandler(UnsubscribeRequestSchema, ({ params }) => subscription('unsubscribe', params.uri))
    }
    mcp.server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => run({
      name: params.name,
      args: params.arguments,
      signal: extra.signal,
      notify: notification => extra.sendNotification(notification),
      announce: (level, data) => mcp.sendLoggingMessage({ level: level as 'info', data }, sessionId),
      elicit: (message, options) => mcp.server.elicitInput({ message, requestedSchema } as any, options),
      elicitAlone: message => mcp.server.elicitInput({ message, requestedSchema } as any)
    }, note))
    return mcp
  }
  const mcp = new McpServer2(info, { capabilities })
  mcp.server.setRequestHandler('tools/list', () => listTools() as any)
  if (capabilities.resources !== undefined) {
    mcp.server.setRequestHandler('resources/subscribe', ({ params }) => subscription('subscribe', params.uri))
    mcp.server.setRequestHandler('resources/unsubscribe', ({ params }) => subscription('unsubscribe', params.uri))
  }
  mcp.server.setRequestHandler('tools/call', async ({ params }, ctx) => run({
    name: params.name,
    args: params.arguments,
    signal: ctx.mcpReq.signal,
    notify: notification => ctx.mcpReq.notify(notification),
    announce: (level, data) => mcp.sendLoggingMessage({ level: level as 'info', data }, sessionId),
    elicit: (message, options) => ctx.mcpReq.elicitInput({ message, requestedSchema } as any, options),
    elicitAlone: message => mcp.server.elicitInput({ message, requestedSchema } as any)
  }, note))
  return mcp
}

function listTools (): object {
  return { tools: Object.keys(tools).map(name => ({ name, inputSchema: { type: 'object' } })) }
}

async function run (call: Call, note: Note): Promise<any> {
  const text = await tools[call.name]!(call, note)
  return { content: [{ type: 'text', text }] }
}

const tools: Record<string, (call: Call, note: Note) => Promise<string>> = {
  /** Works for so long; stops when it is aborted, unless it is stubborn, and can say something at the end. */
  async work ({ args: { key, ms, stubborn = false, say }, signal, notify }, note) {
    note({ key, what: 'started' })
    signal.addEventListener('abort', () => note({ key, what: 'aborted' }))
    await sleep(ms, undefined, stubborn ? {} : { signal })
    // It may be told that nobody takes it any more.
    if (say !== undefined) await notify(message('info', say)).catch(() => {})
    note({ key, what: 'ended' })
    return `worked on ${key}`
  },

  async echo ({ args: { text } }) {
    return text
  },

  async tick ({ args: { n, ms, bytes = 0 }, signal, notify }) {
    for (let i = 1; i <= n; i++) {
      await sleep(ms, undefined, { signal })
      await notify(message('info', { i, pad: 'x'.repeat(bytes) }))
    }
    return `ticked ${n}`
  },

  /** Throws after it has said something. */
  async fail ({ notify }) {
    await notify(message('info', 'before the failure'))
    throw new Error('failed on purpose')
  },

  /** Elicits; tells what progress was reported meanwhile. */
  async ask ({ args: { question = 'What?', timeout = 30_000, cancelAfterMs }, signal, elicit }) {
    const progress: unknown[] = []
    const own = new AbortController()
    if (cancelAfterMs !== undefined) setTimeout(() => own.abort('no longer of interest'), cancelAfterMs)
    const options = { signal: AbortSignal.any([signal, own.signal]), timeout, onprogress: ({ progress: n }: any) => progress.push(n) }
    const { action, content } = await elicit(question, options).catch(error => ({ action: `failed: ${error.message ?? error}`, content: undefined }))
    return JSON.stringify({ question, action, answer: content?.answer, progress })
  },

  /** A log message on the standalone stream, if the level lets it through. */
  async say ({ args: { level, data }, announce }) {
    await announce(level, data)
    return 'said'
  },

  /** Goes on sending when its call is over. */
  async later ({ args: { n, everyMs }, announce }) {
    const send = async (): Promise<void> => {
      for (let i = 1; i <= n; i++) {
        await sleep(everyMs)
        await announce('info', { i })
      }
    }
    send().catch(() => { /* the instance was let go */ })
    return 'later'
  },

  /** Asks when its call is over, and says what was answered. */
  async askLater ({ args: { question }, elicitAlone, announce }) {
    setTimeout(() => {
      elicitAlone(question).then(({ content }) => announce('info', content), error => announce('info', { failed: String(error) })).catch(() => {})
    }, 50)
    return 'asking'
  },

  async emit ({ args: { n, bytes = 0 }, announce }) {
    for (let i = 1; i <= n; i++) await announce('info', { i, pad: 'x'.repeat(bytes) })
    return `emitted ${n}`
  }
}

function message (level: string, data: unknown): object {
  return { method: 'notifications/message', params: { level, data } }
}
