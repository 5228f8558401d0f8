import type { Socket } from 'node:net'

/** Ends a connection with a RST, as a crash or a cut line does. */
export function resetSocket (socket: Socket): void {
  // While a FIN is on its way Node cannot reset: the handle would never close and keep the process from exiting.
  if (socket.writableEnded) socket.destroy()
  else socket.resetAndDestroy()
}
