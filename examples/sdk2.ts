import { McpServer } from '@modelcontextprotocol/server'
import { z } from 'zod'
import { callTool, listTools } from './tools.ts'
import type { Host } from './tools.ts'

/** The example's MCP server on `@modelcontextprotocol/server` 2.x. */
export function buildServer (host: Host): McpServer {
  const mcp = new McpServer({ name: 'example', version: '1.0.0' }, {
    capabilities: {
      logging: {},
      tools: { listChanged: true },
      prompts: { listChanged: true },
      resources: { listChanged: true, subscribe: true }
    }
  })

  mcp.server.setRequestHandler('tools/list', () => listTools())
  mcp.server.setRequestHandler('tools/call', ({ params }, ctx) => callTool(params.name, params.arguments, {
    progressToken: ctx.mcpReq._meta?.progressToken,
    signal: ctx.mcpReq.signal,
    notify: notification => ctx.mcpReq.notify(notification),
    announce: data => mcp.sendLoggingMessage({ level: 'info', data }, ctx.sessionId),
    elicit: params => ctx.mcpReq.elicitInput(params, { signal: ctx.mcpReq.signal })
  }, host))

  // The plugin keeps the session's subscriptions; the SDK only has to agree.
  mcp.server.setRequestHandler('resources/subscribe', () => ({}))
  mcp.server.setRequestHandler('resources/unsubscribe', () => ({}))
  mcp.registerResource('hello', 'note://hello', { mimeType: 'text/plain' }, uri => ({
    contents: [{ uri: uri.href, text: 'hello' }]
  }))
  mcp.registerPrompt('greet', { argsSchema: z.object({ name: z.string() }) }, ({ name }) => ({
    messages: [{ role: 'user', content: { type: 'text', text: `Greet ${name}.` } }]
  }))
  return mcp
}
