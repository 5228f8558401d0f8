/** The part of tap's `t` that the helpers need: something that runs clean-up at the end of the test. */
export interface Owner {
  teardown (cleanUp: () => unknown): void
}
