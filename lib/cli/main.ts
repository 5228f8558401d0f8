#!/usr/bin/env node
import type { Command, Io } from './command.ts'
import { explainCommand, inspectCommand } from './log-commands.ts'
import { probeCommand } from './probe-command.ts'

const commands: Readonly<Record<string, { run: Command, about: string }>> = {
  probe: { run: probeCommand, about: 'cut and resume the streams of any MCP server and say what it does' },
  inspect: { run: inspectCommand, about: 'say what the log holds of a session' },
  explain: { run: explainCommand, about: 'say which outcome a cursor gets, and why' }
}

// A reader that has seen enough, such as head, is no error.
process.stdout.on('error', () => {})
process.exitCode = await main(process.argv.slice(2), process)

async function main ([name, ...argv]: readonly string[], io: Io): Promise<number> {
  if (name === undefined || name === '--help' || name === '-h' || name === 'help') {
    io.stdout.write(help())
    return name === undefined ? 2 : 0
  }
  const command = Object.hasOwn(commands, name) ? commands[name] : undefined
  if (command === undefined) {
    io.stderr.write(`mcp-resume: no command ${JSON.stringify(name)}\n${help()}`)
    return 2
  }
  return command.run(argv, io)
}

function help (): string {
  const lines = Object.entries(commands).map(([name, { about }]) => `  ${name.padEnd(10)}${about}`)
  return `Usage: mcp-resume COMMAND …\n\n${lines.join('\n')}\n\nmcp-resume COMMAND --help says more.\n`
}
