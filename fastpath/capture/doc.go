// Package capture copies packets out of workers for an operator, without slowing them down.
//
//	worker 0 ─► Ring ─┐
//	worker 1 ─► Ring ─┴─► one reader, which has names and time, and writes the file
//
// A Tap is one capture: a Filter, a bound of its rate, and a Ring for each worker. A worker writes
// Records, and publishes them at the end of a step. It never waits: a record for which a ring has
// no room, or that would exceed the rate, is counted instead. The reader frees a ring's room by
// reading it. All memory is made before the worker gets the Tap.
package capture
