import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Polls until `condition` gives something truthy and returns it.
 * @param what names what is awaited, for the error.
 */
export async function until<T> (condition: () => T | Promise<T>, what: string, timeoutMs = 10_000): Promise<NonNullable<T>> {
  const deadline = performance.now() + timeoutMs
  for (;;) {
    const value = await condition()
    if (value) return value
    if (performance.now() > deadline) throw new Error(`waited ${timeoutMs} ms in vain until ${what}`)
    await sleep(5)
  }
}

/** Rejects when `promise` takes longer than `timeoutMs`. */
export async function within<T> (promise: Promise<T>, what: string, timeoutMs = 10_000): Promise<T> {
  const timer = new AbortController()
  const late = sleep(timeoutMs, undefined, { signal: timer.signal, ref: true }).then(() => {
    throw new Error(`waited ${timeoutMs} ms in vain for ${what}`)
  })
  // When the promise wins, the abandoned timer rejects with an abort nobody waits for.
  late.catch(() => {})
  try {
    return await Promise.race([promise, late])
  } finally {
    timer.abort()
  }
}
