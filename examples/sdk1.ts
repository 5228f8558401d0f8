import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js'
import {
  CallToolRequestSchema, ListToolsRequestSchema, SubscribeRequestSchema, UnsubscribeRequestSchema
} from '@modelcontextprotocol/sdk/types.js'
import { z } from 'zod'
import { callTool, listTools } from './tools.ts'
import type { Host } from './tools.ts'

/** The example's MCP server on `@modelcontextprotocol/sdk` 1.x. */
export function buildServer (host: Host): McpServer {
  const mcp = new McpServer({ name: 'example', version: '1.0.0' }, {
    capabilities: {
      logging: {},
      tools: { listChanged: true },
      prompts: { listChanged: true },
      resources: { listChanged: true, subscribe: true }
    }
  })

  mcp.server.setRequestHandler(ListToolsRequestSchema, () => listTools())
  mcp.server.setRequestHandler(CallToolRequestSchema, ({ params }, extra) => callTool(params.name, params.arguments, {
    progressToken: extra._meta?.progressToken,
    signal: extra.signal,
    notify: notification => extra.sendNotification(notification as Parameters<typeof extra.sendNotification>[0]),
    announce: data => mcp.sendLoggingMessage({ level: 'info', data }, extra.sessionId),
    elicit: params => mcp.server.elicitInput(params, { signal: extra.signal })
  }, host))

  // The plugin keeps the session's subscriptions; the SDK only has to agree.
  mcp.server.setRequestHandler(SubscribeRequestSchema, () => ({}))
  mcp.server.setRequestHandler(UnsubscribeRequestSchema, () => ({}))
  mcp.registerResource('hello', 'note://hello', { mimeType: 'text/plain' }, uri => ({
    contents: [{ uri: uri.href, text: 'hello' }]
  }))
  mcp.registerPrompt('greet', { argsSchema: { name: z.string() } }, ({ name }) => ({
    messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name}.` } }]
  }))
  return mcp
}
