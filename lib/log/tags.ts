import { randomInt } from 'node:crypto'

const ALPHABET = '0123456789abcdefghijklmnopqrstuvwxyz'

/** `length` characters `[0-9a-z]` from the CSPRNG. */
export function randomText (length: number): string {
  let text = ''
  while (text.length < length) text += ALPHABET[randomInt(ALPHABET.length)]
  return text
}

/** Binds a cursor to its event: a number may be issued again after a failover, the tag is not. */
export function newTag (): string {
  return randomText(4)
}
