import t from 'tap'
import type { EventId } from '../lib/event-id.ts'
import { decideResume, formatOutcome, replayCount, type View } from '../lib/resume.ts'
import { cursorsFor, deliveredBy, judge, viewOf, words, type History } from './helpers/history.ts'

// Stream 1 has the events 1, 4, 5, 8, 9 (offsets 0 to 4); the session has reached 12.
const at = (seq: number, offset: number, tag = `t${seq}`): EventId => ({ seq, offset, stream: '1', tag })
const all: View = { head: 12, floor: 1, stream: { newest: at(9, 4), evicted: undefined }, retained: false }
const some: View = { ...all, floor: 6, stream: { newest: at(9, 4), evicted: at(5, 2) } }
const last: View = { ...all, floor: 9, stream: { newest: at(9, 4), evicted: at(8, 3) } }
const none: View = { ...all, floor: 11, stream: { newest: at(9, 4), evicted: at(9, 4) } }
const kept = (view: View): View => ({ ...view, retained: true })

const table: Array<[what: string, cursor: EventId, view: View, outcome: string]> = [
  ['the newest event', at(9, 4), kept(all), 'resumed;cause=caught-up;replay=0;head="9-4-1-t9"'],
  ['the newest event, evicted', at(9, 4), none, 'resumed;cause=caught-up;replay=0;head="9-4-1-t9"'],
  ['one before the newest', at(8, 3), kept(all), 'resumed;cause=replay;replay=1;head="9-4-1-t9"'],
  ['the opening', at(1, 0), kept(all), 'resumed;cause=replay;replay=4;head="9-4-1-t9"'],
  ['B08: the oldest retained', at(8, 3), kept(some), 'resumed;cause=replay;replay=1;head="9-4-1-t9"'],
  ['B08: one before the oldest retained', at(5, 2), some, 'resumed;cause=replay;replay=2;head="9-4-1-t9"'],
  ['B08: two before the oldest retained', at(4, 1), some, 'gap;cause=evicted;missed=1;replay=2;head="9-4-1-t9"'],
  ['the opening, evicted', at(1, 0), some, 'gap;cause=evicted;missed=2;replay=2;head="9-4-1-t9"'],
  ['all but the newest evicted', at(5, 2), last, 'gap;cause=evicted;missed=1;replay=1;head="9-4-1-t9"'],
  ['everything evicted, one behind', at(8, 3), none, 'gap;cause=evicted;missed=1;replay=0;head="9-4-1-t9"'],
  ['everything evicted, from the opening', at(1, 0), none, 'gap;cause=evicted;missed=4;replay=0;head="9-4-1-t9"'],
  ['the newest number under another tag', at(9, 4, 'xxxx'), all, 'gap;cause=diverged;replay=0;head="9-4-1-t9"'],
  ['a retained number under another tag', at(8, 3, 'xxxx'), some, 'gap;cause=diverged;head="9-4-1-t9"'],
  ['the newest evicted number under another tag', at(5, 2, 'xxxx'), some, 'gap;cause=diverged;head="9-4-1-t9"'],
  ['the newest event at another offset', at(9, 3), all, 'gap;cause=diverged;replay=0;head="9-4-1-t9"'],
  ['a number of another stream, inside what is retained', at(7, 3, 'xxxx'), some, 'gap;cause=diverged;head="9-4-1-t9"'],
  ['a number above the stream\'s newest, below the head', at(11, 5, 'xxxx'), all, 'gap;cause=diverged;replay=0;head="9-4-1-t9"'],
  ['nothing evicted, so nothing is missing', at(4, 1, 'xxxx'), all, 'gap;cause=diverged;head="9-4-1-t9"'],
  ['below the floor, but an offset that is not behind', at(4, 2, 'xxxx'), some, 'gap;cause=diverged;head="9-4-1-t9"'],
  ['the floor itself', at(6, 1, 'xxxx'), some, 'gap;cause=diverged;head="9-4-1-t9"'],
  ['one below the floor, of another event', { ...at(10, 3), tag: 'xxxx' }, none, 'gap;cause=diverged;replay=0;head="9-4-1-t9"'],
  ['the head, of another stream', at(12, 5, 'xxxx'), all, 'gap;cause=diverged;replay=0;head="9-4-1-t9"'],
  ['one above the head', at(13, 5, 'xxxx'), all, 'future;cause=ahead;replay=0;head="9-4-1-t9"'],
  ['above the head, unknown stream', at(13, 5, 'xxxx'), { ...all, stream: undefined }, 'future;cause=ahead'],
  ['at the head, unknown stream', at(12, 5, 'xxxx'), { ...all, stream: undefined }, 'gap;cause=expired'],
  ['unknown stream', at(3, 0, 'xxxx'), { ...all, stream: undefined }, 'gap;cause=expired'],
  ['the largest number', at(Number.MAX_SAFE_INTEGER, 5), all, 'future;cause=ahead;replay=0;head="9-4-1-t9"']
]

t.test('the borders', async t => {
  for (const [what, cursor, view, outcome] of table) t.equal(formatOutcome(decideResume(cursor, view), view), outcome, what)
})

t.test('where delivery starts', async t => {
  t.strictSame(decideResume(at(8, 3), kept(some)).start, at(8, 3), 'resumed: after the cursor')
  t.strictSame(decideResume(at(4, 1), some).start, at(5, 2), 'evicted: after the newest evicted event')
  t.strictSame(decideResume(at(7, 3, 'xxxx'), some).start, { seq: 7 }, 'diverged: above the number')
  t.strictSame(decideResume(at(11, 3, 'xxxx'), some).start, at(9, 4), 'diverged, nothing above the number: at the newest')
  t.strictSame(decideResume(at(13, 3, 'xxxx'), some).start, at(9, 4), 'future: at the newest')
  t.equal(decideResume(at(3, 3), { ...all, stream: undefined }).start, undefined)
  t.equal(replayCount(decideResume(at(7, 3, 'xxxx'), some), some), undefined, 'not known when only a number is')
})

const STREAMS = ['1', 'aaaaaaaa', 'bbbbbbbb']
let tags = 0

/** Goes on from `events`, one event on each of `streams`, numbered from `next` on. */
function goOn (events: readonly EventId[], streams: readonly string[], next: number): EventId[] {
  const all = [...events]
  for (const stream of streams) {
    const before = all.findLast(event => event.stream === stream)
    all.push({ seq: next++, offset: (before?.offset ?? -1) + 1, stream, tag: (tags++ % 36 ** 4).toString(36).padStart(4, '0') })
  }
  return all
}

/**
 * Every log of up to `length` events: over these streams, with every eviction; then rolled back to every point with
 * every eviction that it may have had there, gone on with, by a replica that remembers what was lost or by one that
 * does not, and evicted from again.
 */
function * histories (streams: readonly string[], length: number, more: number): Iterable<History> {
  for (let n = 1; n <= length; n++) {
    for (const word of words(streams, n - 1)) {
      const events = goOn([], ['1', ...word], 1)
      for (let evicted = 0; evicted < n; evicted++) yield { events, evicted, issued: events }
      for (let kept = 1; kept < n; kept++) {
        for (let c = 0; c <= more; c++) {
          for (const continuation of words(streams, c)) {
            for (const next of c === 0 ? [kept + 1] : [kept + 1, n + 1]) {
              const after = goOn(events.slice(0, kept), continuation, next)
              const issued = [...events, ...after.slice(kept)]
              for (let evicted = 0; evicted < after.length; evicted++) yield { events: after, evicted, issued }
            }
          }
        }
      }
    }
  }
}

t.test('every cursor on every small log: nothing undefined, nothing resumed with a hole, every count exact', async t => {
  for (const [streams, length, more] of [[STREAMS, 4, 2], [STREAMS.slice(0, 2), 5, 2]] as Array<[string[], number, number]>) {
    const seen: Record<string, number> = {}
    const wrong: string[] = []
    let logs = 0
    for (const history of histories(streams, length, more)) {
      logs++
      for (const cursor of cursorsFor(history, streams)) {
        const decision = decideResume(cursor, viewOf(history, cursor))
        const key = `${decision.outcome} ${decision.cause}`
        seen[key] = (seen[key] ?? 0) + 1
        const fault = judge(history, cursor, decision, deliveredBy(history, cursor, decision))
        if (fault !== undefined && wrong.push(`${JSON.stringify({ cursor, decision, history })}: ${fault}`) > 3) break
      }
    }
    t.strictSame(wrong, [], `${logs} logs over ${streams.length} streams`)
    t.comment(JSON.stringify(seen))
    for (const key of ['resumed replay', 'resumed caught-up', 'gap evicted', 'gap diverged', 'gap expired', 'future ahead']) {
      t.ok(seen[key]! > 1000, `${key} occurs`)
    }
  }
})
