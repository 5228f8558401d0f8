/** One command as it went to Redis. Arguments are cut after 200 bytes. */
export interface RedisCommand {
  /** Upper case. */
  name: string
  args: string[]
}

/** Finds the commands in a byte stream from a Redis client; feed it chunk by chunk. */
export function createCommandParser (onCommand: (command: RedisCommand) => void): (chunk: Buffer) => void {
  let pending: Buffer = Buffer.alloc(0)
  return chunk => {
    pending = pending.length === 0 ? chunk : Buffer.concat([pending, chunk])
    for (;;) {
      const parsed = parseCommand(pending)
      if (parsed === undefined) return
      pending = pending.subarray(parsed.length)
      onCommand(parsed.command)
    }
  }
}

// `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`; undefined while incomplete.
function parseCommand (bytes: Buffer): { command: RedisCommand, length: number } | undefined {
  let at = 0
  const count = header('*')
  if (count === undefined) return undefined
  const words: string[] = []
  for (let i = 0; i < count; i++) {
    const size = header('$')
    if (size === undefined || at + size + 2 > bytes.length) return undefined
    words.push(bytes.toString('utf8', at, at + Math.min(size, 200)))
    at += size + 2
  }
  const [name = '', ...args] = words
  return { command: { name: name.toUpperCase(), args }, length: at }

  function header (type: string): number | undefined {
    const end = bytes.indexOf('\r\n', at)
    if (end === -1) return undefined
    const line = bytes.toString('latin1', at, end)
    if (!line.startsWith(type)) throw new Error(`not a Redis command: ${line.slice(0, 80)}`)
    at = end + 2
    return Number(line.slice(1))
  }
}
