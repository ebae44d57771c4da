package stateless

import "math/bits"

// A flow's number is all there is to know about it: its tuple is computed, not
// looked up, so a million flows cost the generator no cache.

// divisor divides by a number that is not known at compile time with one
// multiplication: the quotient by 2^32/by is at most one too low.
type divisor struct{ by, inverse uint32 }

func newDivisor(by uint32) divisor {
	// 2^32/1 does not fit; one less makes the estimate one too low, which is corrected.
	return divisor{by: by, inverse: uint32(min((1<<32)/uint64(by), 1<<32-1))}
}

func (d *divisor) divide(n uint32) (quotient, rest uint32) {
	quotient = uint32(uint64(n) * uint64(d.inverse) >> 32)
	rest = n - quotient*d.by
	if rest >= d.by {
		quotient++
		rest -= d.by
	}
	return quotient, rest
}

// tuples turns a flow's number into its tuple: source addresses vary fastest,
// then source ports, destination addresses and destination ports.
type tuples struct {
	src, dst                           uint32 // last 32 bits of the first addresses
	srcPort, dstPort                   uint32 // first ports
	sources, sourcePorts, destinations divisor
}

// of returns the last 32 bits of source and destination address, and the ports, the
// source's in the upper half.
func (t *tuples) of(flow uint32) (src, dst, ports uint32) {
	rest, at := t.sources.divide(flow)
	src = t.src + at
	rest, at = t.sourcePorts.divide(rest)
	ports = (t.srcPort + at) << 16
	rest, at = t.destinations.divide(rest)
	return src, t.dst + at, ports | (t.dstPort + rest)
}

// strideCount is how many different orders there are before one repeats.
const strideCount = 16

// order decides whose turn it is: each round visits each of its flows once, and
// no two rounds in a row in the same order, so that nothing downstream finds its
// entries in the order in which it made them.
type order struct {
	flows, first, step uint32 // first, first + step, ...
	strides            [strideCount]uint32
	position, left     uint32
	round              uint32
}

// newOrder is for part q of n: the flows that are q modulo n.
func newOrder(flows, q, n uint32) order {
	o := order{flows: (flows - q + n - 1) / n, first: q, step: n, strides: strides((flows - q + n - 1) / n)}
	o.left = o.flows
	return o
}

// strides are steps that visit all of n places: they share no divisor with n. They
// are spread over n by the golden ratio.
func strides(n uint32) (s [strideCount]uint32) {
	const golden = 0x9e3779b9
	for i := range s {
		hi, _ := bits.Mul32(uint32(i+1)*golden, n)
		for s[i] = max(hi, 1); gcd(s[i], n) != 1; s[i]++ {
		}
		if s[i] >= n { // a stride above n is one modulo n
			s[i] = 1 % n
		}
	}
	return s
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// next returns the next flow and the number of the round it is in.
func (o *order) next() (flow, round uint32) {
	if o.left == 0 {
		o.left = o.flows
		o.round++
	}
	o.left--
	// Both are below flows, which is below 2^31.
	o.position += o.strides[o.round%strideCount]
	if o.position >= o.flows {
		o.position -= o.flows
	}
	return o.first + o.position*o.step, o.round
}

// seen is how many different flows next has returned.
func (o *order) seen() int {
	if o.round > 0 {
		return int(o.flows)
	}
	return int(o.flows - o.left)
}
