/** Where a command writes, and what it may look at. */
export interface Io {
  readonly stdout: Output
  readonly stderr: Output
  readonly env: NodeJS.ProcessEnv
}

interface Output {
  readonly isTTY?: boolean
  write (text: string): unknown
}

/** Takes its arguments, resolves to the exit code. */
export type Command = (argv: readonly string[], io: Io) => Promise<number>
