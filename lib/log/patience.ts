import { setTimeout as sleep } from 'node:timers/promises'
import { LogAway } from '../errors.ts'

const PAUSE_MS = 100

/**
 * Tries again while the log is away, for `waitMs` at most.
 *
 * @throws LogAway when it is still away then; anything else at once.
 */
export async function patiently<T> (waitMs: number, attempt: () => Promise<T>): Promise<T> {
  const deadline = performance.now() + waitMs
  for (;;) {
    try {
      return await attempt()
    } catch (error) {
      if (!(error instanceof LogAway) || performance.now() >= deadline) throw error
    }
    await sleep(PAUSE_MS)
  }
}
