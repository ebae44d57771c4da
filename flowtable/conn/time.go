package conn

import "time"

// Time is CLOCK_BOOTTIME in nanoseconds. It is always an argument: the package reads no clock.
type Time uint64

// Ticks are deciseconds of boot time: 32 bits last 13 years.
type Ticks uint32

// Tick is the unit of Ticks.
const Tick = 100 * time.Millisecond

// Ticks returns the time in ticks.
func (t Time) Ticks() Ticks { return Ticks(uint64(t) / uint64(Tick)) }

// Since returns the ticks from u to t. It is negative if u is later.
func (t Ticks) Since(u Ticks) int32 { return int32(t - u) }

// TicksOf returns a duration in ticks.
func TicksOf(d time.Duration) int32 { return int32(d / Tick) }

// Span returns the duration between two ticks.
func Span(from, to Ticks) time.Duration { return time.Duration(to.Since(from)) * Tick }
