import type { EventId, EventStore, JSONRPCMessage, StreamId } from '@modelcontextprotocol/server'

/** An event store for the SDK's transport: one session's, ordered, in memory, unbounded. The SDK ships none. */
export class MemoryEventStore implements EventStore {
  readonly #events: Array<{ stream: StreamId, message: JSONRPCMessage }> = []

  async storeEvent (stream: StreamId, message: JSONRPCMessage): Promise<EventId> {
    this.#events.push({ stream, message })
    return String(this.#events.length)
  }

  async getStreamIdForEventId (id: EventId): Promise<StreamId | undefined> {
    return this.#events[Number(id) - 1]?.stream
  }

  async replayEventsAfter (last: EventId, { send }: { send: (id: EventId, message: JSONRPCMessage) => Promise<void> }): Promise<StreamId> {
    const { stream } = this.#events[Number(last) - 1]!
    for (let i = Number(last); i < this.#events.length; i++) {
      const event = this.#events[i]!
      if (event.stream === stream) await send(String(i + 1), event.message)
    }
    return stream
  }
}
