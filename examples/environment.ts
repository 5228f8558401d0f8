/** What the environment says about this replica; an option that is absent there is left to its default. */
export function readEnvironment (env: NodeJS.ProcessEnv) {
  const keyPrefix = text('KEY_PREFIX')
  const retention = present({
    windowMs: integer('WINDOW_MS'),
    maxEvents: integer('MAX_EVENTS'),
    maxBytes: integer('MAX_BYTES')
  })
  return {
    host: text('HOST') ?? '127.0.0.1',
    port: integer('PORT') ?? 3000,
    sdk: oneOf('SDK', ['1', '2']) === '1' ? 1 : 2,
    redisUrl: text('REDIS_URL'),
    hitPrefix: `${keyPrefix ?? 'mcp:'}hit:`,
    logLevel: text('LOG_LEVEL') ?? 'info',
    options: present({
      keyPrefix,
      retention: Object.keys(retention).length === 0 ? undefined : retention,
      sessionTtlMs: integer('SESSION_TTL_MS'),
      keepAliveMs: integer('KEEP_ALIVE_MS'),
      retryMs: integer('RETRY_MS'),
      graceMs: integer('GRACE_MS'),
      resumable: oneOf('RESUMABLE', ['0', '1']) === '0' ? false : undefined,
      onGap: oneOf('ON_GAP', ['notice', 'reject', 'terminate']),
      onFuture: oneOf('ON_FUTURE', ['notice', 'reject', 'terminate'])
    })
  }

  function text (name: string): string | undefined {
    return env[name] === '' ? undefined : env[name]
  }

  function integer (name: string): number | undefined {
    const value = text(name)
    if (value === undefined) return undefined
    if (!/^\d+$/.test(value)) throw new Error(`${name} must be a whole number, not ${JSON.stringify(value)}`)
    return Number(value)
  }

  function oneOf<Word extends string> (name: string, words: readonly Word[]): Word | undefined {
    const value = text(name)
    if (value === undefined) return undefined
    const word = words.find(word => word === value)
    if (word === undefined) throw new Error(`${name} must be one of ${words.join(', ')}, not ${JSON.stringify(value)}`)
    return word
  }
}

type Present<T> = { [K in keyof T]?: Exclude<T[K], undefined> }

function present<T extends object> (values: T): Present<T> {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== undefined)) as Present<T>
}
