/** A tool as `tools/list` names it, unchecked. */
export interface Tool {
  readonly name: string
  readonly description?: string
  readonly inputSchema?: Schema
  readonly annotations?: { readonly readOnlyHint?: boolean, readonly idempotentHint?: boolean }
}

interface Schema {
  readonly type?: unknown
  readonly properties?: Readonly<Record<string, Schema>>
  readonly required?: readonly string[]
  readonly enum?: readonly unknown[]
  readonly const?: unknown
  readonly default?: unknown
  readonly minimum?: number
  readonly maximum?: number
  readonly exclusiveMinimum?: number
  readonly minLength?: number
}

/** Arguments to call a tool with, and how to make it send more. */
export interface Plan {
  readonly args: Readonly<Record<string, unknown>>
  /** Undefined when no argument looks like a count. */
  readonly flood?: Flood
}

/** The arguments for about so many events with so much time between them. */
export type Flood = (events: number, pauseMs: number) => Readonly<Record<string, unknown>>

// Long enough to cut twice and miss something each time, short enough to call a dozen times.
const EVENTS = 12
const PAUSE_MS = 50

const COUNT = /^(n|num\w*|count|steps?|times|total|iterations?|repeat|repetitions|events?|ticks?|messages?)$/i
const PAUSE = /^(ms|millis\w*|\w*ms|delay\w*|interval\w*|pause\w*|sleep\w*|wait\w*)$/i
const DURATION = /^(duration|seconds|secs?)$/i

/** Takes the given arguments, or makes some up from the schema: few enough events to be quick, paced so that a cut hits. */
export function planArguments (tool: Tool, given?: Readonly<Record<string, unknown>>): Plan {
  const properties = Object.entries(tool.inputSchema?.properties ?? {})
  const required = new Set(tool.inputSchema?.required)
  const args = given ?? Object.fromEntries(properties
    .filter(([name, schema]) => required.has(name) || (isNumber(schema) && paces(name)))
    .map(([name, schema]) => [name, guess(name, schema)]))
  const counts = properties.filter(([name, schema]) => isNumber(schema) && COUNT.test(name) && name in args)
  const count = counts[0]
  if (count === undefined) return { args }
  const pauses = properties.filter(([name, schema]) => isNumber(schema) && (PAUSE.test(name) || DURATION.test(name)) && name in args)
  return {
    args,
    flood: (events, pauseMs) => ({
      ...args,
      [count[0]]: clamp(events, count[1]),
      ...Object.fromEntries(pauses.map(([name, schema]) => [name, clamp(DURATION.test(name) ? pauseMs * events / 1000 : pauseMs, schema)]))
    })
  }
}

/** Safe to call unasked: the server itself says that a call changes nothing, or nothing more the second time. */
export function isSafe (tool: Tool): boolean {
  return tool.annotations?.readOnlyHint === true || tool.annotations?.idempotentHint === true
}

/** How much a tool looks like one that streams; the probe tries the likeliest first. */
export function streamingLikelihood (tool: Tool): number {
  const names = Object.keys(tool.inputSchema?.properties ?? {})
  const words = /progress|stream|long|tick|count|slow|notif|steps?/i
  return (names.some(name => COUNT.test(name)) ? 2 : 0) + (names.some(name => PAUSE.test(name) || DURATION.test(name)) ? 2 : 0) +
    (words.test(`${tool.name} ${tool.description ?? ''}`) ? 1 : 0)
}

function guess (name: string, schema: Schema): unknown {
  if (schema.const !== undefined) return schema.const
  if (schema.enum !== undefined && schema.enum.length > 0) return schema.enum[0]
  if (isNumber(schema)) {
    if (COUNT.test(name)) return clamp(EVENTS, schema)
    if (DURATION.test(name)) return clamp(1, schema)
    if (PAUSE.test(name)) return clamp(PAUSE_MS, schema)
    return schema.default ?? clamp(1, schema)
  }
  if (schema.default !== undefined) return schema.default
  switch (Array.isArray(schema.type) ? schema.type[0] : schema.type) {
    case 'boolean': return false
    case 'array': return []
    case 'object': return {}
    default: return 'probe'.padEnd(schema.minLength ?? 0, '.')
  }
}

function paces (name: string): boolean {
  return COUNT.test(name) || PAUSE.test(name) || DURATION.test(name)
}

function isNumber (schema: Schema): boolean {
  const types = Array.isArray(schema.type) ? schema.type : [schema.type]
  return types.includes('number') || types.includes('integer')
}

function clamp (value: number, schema: Schema): number {
  const minimum = schema.minimum ?? (schema.exclusiveMinimum === undefined ? undefined : schema.exclusiveMinimum + 1)
  return Math.max(minimum ?? -Infinity, Math.min(schema.maximum ?? Infinity, value))
}
