import { quoteId } from './id-shape.ts'
import { lastId } from './observation.ts'
import type { Got, Observation, Resume, ScenarioName } from './observation.ts'
import { announcesLoss, quoteSignal } from './signal.ts'
import type { Judgement, Weakness } from './verdict.ts'

/** Whose cursor it is, for a sentence. */
const CURSORS: Record<ScenarioName, string> = {
  'unique IDs': '',
  'exact cursor': 'the last ID received before the cut',
  'caught up': 'the newest ID, at once after the cut',
  'second drop': 'the same cursor again, after a second drop before anything was read',
  'half-open': 'the last ID received, while the old connection is still open and not read',
  'other replica': 'the last ID received, on the other replica',
  'busy stream': 'the last ID received, at once after each of several cuts',
  'finished stream': 'the last ID of a finished stream',
  'first event': 'the first ID of the stream',
  'older than retained': 'the first of many IDs',
  'ahead of the head': 'an ID that was not issued yet',
  garbage: 'no ID of any server',
  'other session': 'an ID issued to another session'
}

const WEAKNESSES: Record<Weakness, string> = {
  'silent when caught up': 'Until the next message came, nothing told it from a resume that was ignored (no ID, no header): a second drop there leaves stock TypeScript clients without a cursor.',
  'ends with 200': 'An SSE client comes back after a 200 that ends; 204 would tell it to stop.',
  'stays open': 'The stream can carry nothing more, yet it stays open; 204 would tell the client to stop.',
  'refuses for a while': 'Right after the cut the server still took the old connection for alive and answered 409; stock TypeScript clients try twice and then stop listening.',
  'locked out by a half-open connection': 'Until the server notices that the old connection is dead, which can take minutes, the client cannot resume.',
  'both connections got it': 'The old connection was sent the response as well; a message belongs on one stream only.',
  'false alarm': 'A loss was announced although nothing was lost.',
  'wrong count': 'The announced number of missed messages is not the number that is missing.',
  'accepted silently': 'The cursor was taken without a word although it is no position of this stream.',
  'server error': 'It is a server error, not a refusal: clients may retry for ever.',
  'events without IDs': 'Some messages carry no ID; a client that is cut right after one gets it again.'
}

/** What happened, in words that a maintainer can be sent. */
export function putInWords (seen: Observation, judgement: Judgement): string {
  const extra = judgement.weaknesses.map(weakness => WEAKNESSES[weakness])
  return [facts(seen, judgement), ...extra].filter(part => part !== '').join(' ')
}

function facts (seen: Observation, judgement: Judgement): string {
  const { scenario, skipped, resumes, streams } = seen
  if (skipped !== undefined) return `${capital(skipped)}.`
  if (scenario === 'unique IDs') return idFacts(streams ?? [], judgement)
  const final = resumes.at(-1)
  if (final === undefined) return 'Nothing was resumed.'
  return [`GET with Last-Event-ID ${asked(seen)} ${answer(seen, final)}.`, ...delivery(seen, judgement)].join(' ')
}

function asked ({ scenario, resumes }: Observation): string {
  const [first] = resumes as [Resume, ...Resume[]]
  const final = resumes.at(-1)!
  const again = scenario !== 'second drop' && scenario !== 'busy stream' && resumes.some(({ endedBy }) => endedBy === 'probe') && final !== first ? `, and after another cut ${quoteId(final.cursor)},` : ''
  return `${quoteId(first.cursor)} (${CURSORS[scenario]})${again}`
}

function answer ({ resumes }: Observation, { status, contentType, error, body, lastedMs, endedBy }: Resume): string {
  if (status === undefined) return error === undefined ? `got no answer within ${Math.round(lastedMs)} ms` : `failed without an answer: ${error}`
  const signal = resumes.map(({ signal }) => signal).find(announcesLoss) ?? resumes.find(({ signal }) => signal !== undefined)?.signal
  const said = signal === undefined ? '' : ` and said “${quoteSignal(signal)}”`
  const statuses = resumes.map(({ status }) => status ?? 'nothing').filter((status, i, all) => status !== all[i - 1])
  if (status !== 200) return `was answered ${statuses.join(', then ')}${body === undefined || body === '' ? '' : ` ${excerpt(body)}`}${said}`
  if (!(contentType ?? '').startsWith('text/event-stream')) return `was answered 200 ${contentType ?? ''} ${excerpt(body ?? '')}${said}`
  const gets = resumes.filter(resume => resume.endedBy === 'server' && resume.status === 200).length
  if (gets > 1 && endedBy === 'server') return `was answered 200 and ended by the server, ${gets} times in a row${said}`
  return `was answered ${statuses.join(', then ')}${said}`
}

function delivery (seen: Observation, judgement: Judgement): string[] {
  const { scenario, expected, before, resumes, afterClose } = seen
  const { verdict, missing, repeated, wentBack, strays } = judgement
  const final = resumes.at(-1)!
  const sentences: string[] = []
  if (strays.length > 0) {
    const whose = strays.some(({ from }) => from === 'other session') ? 'another session' : 'other streams of the session'
    sentences.push(`${messages(strays.length)} of ${whose} came: ${list(strays.flatMap(({ key }) => key ?? []))}.`)
  }
  const told = verdict === 'correct' && missing.length > 0 && final.status === 200
  if (told) sentences.push(`So the client knows that it lost its place. Not sent again: ${list(missing)}.`)
  if (wentBack.length > 0 && verdict === 'rebase') {
    const [first] = wentBack as [Got, ...Got[]]
    sentences.push(`${first.key ?? 'A message'} came with ID ${quoteId(first.id ?? '')}, ${conflict(seen, first)}.`)
  }
  if (repeated.length > 0) sentences.push(`${messages(repeated.length)} came again although the client had them: ${list(repeated)}.`)
  if (resumes.some(({ status }) => status === 200) && missing.length > 0 && !told) {
    sentences.push(`${missing.length} of ${messages(expected.length - before.length)} owed never came: ${list(missing)}.`)
    if (verdict === 'hang') sentences.push('The connection stayed open with nothing more on it, so the client waits for ever.')
    if (verdict === 'silent gap') sentences.push('No status, header or message said so.')
  } else if (verdict === 'hang' && scenario === 'finished stream' && final.status === 200) {
    sentences.push('It stayed open without a word although nothing can come any more.')
  }
  if (verdict === 'out of order') sentences.push('Everything came, but not in the order in which it was sent first.')
  if (verdict === 'silent gap' && final.status === 204) sentences.push('204 says that nothing is left, but the call was not answered yet.')
  if (verdict === 'correct' && missing.length === 0 && final.status === 200 && scenario !== 'finished stream') {
    sentences.push(`All ${messages(expected.length - before.length)} owed came, once and in order.`)
  }
  if (verdict === 'could not tell') {
    sentences.push(scenario === 'older than retained' && missing.length === 0
      ? `All ${messages(expected.length - before.length)} since then were still retained; --flood N sends more.`
      : 'The call sends other messages each time, so nobody can say what should have come.')
  }
  if (afterClose !== undefined) sentences.push(`Once the old connection was closed it was answered ${afterClose.status ?? 'not at all'}.`)
  return sentences
}

function idFacts (streams: ReadonlyArray<readonly Got[]>, { verdict, reusedIds, wentBack }: Judgement): string {
  const count = streams.flat().filter(({ id }) => id !== undefined).length
  switch (verdict) {
    case 'not offered': return 'No event carried an ID.'
    case 'rebase': {
      const named = streams.flatMap((stream, i) => stream.filter(({ id }) => id === reusedIds[0]).map(({ key }) => `${key ?? 'a message'} of call ${i + 1}`))
      return `In one session ${reusedIds.length} of ${count} IDs name more than one message: ${quoteId(reusedIds[0] ?? '')} is ${list(named.slice(0, 2))}. ` +
        'A cursor must name one event of the session.'
    }
    case 'out of order': return `Without any cut, ${messages(wentBack.length)} came with an ID lower than the one before.`
    default: return `${count} events of ${streams.length} calls in one session, every ID once.`
  }
}

// Why an ID cannot be right: another message had it, its message had another, or it does not count on.
function conflict ({ scenario, shape, before, resumes }: Observation, { key, id }: Got): string {
  const all = [...before, ...resumes.flatMap(({ got }) => got)].filter(({ from }) => from === 'stream')
  const owner = all.find(other => other.id === id && other.key !== key)
  if (owner !== undefined) return `the ID that ${owner.key ?? 'another message'} had`
  const sameMessage = all.find(other => other.key === key && other.id !== id)
  if (sameMessage !== undefined) return `and before that with ${quoteId(sameMessage.id ?? '')}`
  const previous = scenario === 'ahead of the head' ? resumes[0]?.cursor : lastId(all.slice(0, all.findIndex(other => other.id === id)))
  return `which does not count on from ${quoteId(previous ?? '')} (${shape.form} IDs)`
}

function list (keys: readonly string[]): string {
  return keys.length <= 5 ? keys.join(', ') : `${keys.slice(0, 3).join(', ')}, … ${keys.at(-1)!}`
}

function messages (count: number): string {
  return count === 1 ? '1 message' : `${count} messages`
}

function excerpt (body: string): string {
  return body.replace(/\s+/g, ' ').trim().slice(0, 120)
}

function capital (text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}
