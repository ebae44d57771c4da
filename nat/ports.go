package nat

import (
	"errors"
	"fmt"
)

// strides are primes above 256: no number of 16 bits is divisible by two of them,
// so of two neighbours at least one is coprime to any count.
var strides = [16]uint16{
	257, 1031, 2053, 3079, 4099, 5119, 6151, 7177,
	8209, 9221, 10243, 12289, 14341, 16411, 20483, 32771,
}

// ChoosePorts returns in which order to try the ports of a range for a new flow:
// first + (start + i*stride) mod count, for i from 0. rnd must be random. The start
// cannot be guessed (RFC 6056 section 3.3); the stride is coprime to count, so the
// order meets every port, and two flows that start side by side do not follow each
// other's trail.
func ChoosePorts(rnd uint64, first, count uint16) (start, stride uint16) {
	if count <= 1 {
		return 0, 1
	}
	start = uint16((rnd & 0xffffffff) * uint64(count) >> 32)
	i := rnd >> 60
	stride = strides[i]
	if count%stride == 0 {
		stride = strides[(i+1)%uint64(len(strides))]
	}
	return start, stride % count
}

// firstUserPort is the first port that needs no privilege (RFC 6335 section 6).
const firstUserPort = 1024

// ValidPortRange checks the range of source ports against what else uses ports on
// an address that the node shares with us: the cluster's NodePorts and the host's
// ephemeral ports (net.ipv4.ip_local_port_range), both first and last; two zeros
// mean none. An overlap would translate the node's own replies, or miss ours.
func ValidPortRange(first, count uint16, nodePorts, ephemeral [2]uint16) error {
	if count == 0 {
		return errors.New("SNAT port range is empty: it bounds the flows to one backend per SNAT address, so give it " +
			"thousands")
	}
	if first < firstUserPort {
		return fmt.Errorf("SNAT port range starts at %d, among the privileged ports: start it at %d or above", first,
			firstUserPort)
	}
	last := uint32(first) + uint32(count) - 1
	if last > 65535 {
		return fmt.Errorf("SNAT port range of %d ports from %d on ends at %d: the last port is 65535", count, first,
			last)
	}
	return errors.Join(
		disjoint(first, uint16(last), nodePorts, "the NodePort range",
			"choose another SNAT range, or another --service-node-port-range of the API server"),
		disjoint(first, uint16(last), ephemeral, "the host's ephemeral ports",
			"choose another SNAT range, or narrow the host's with sysctl net.ipv4.ip_local_port_range"),
	)
}

func disjoint(first, last uint16, other [2]uint16, name, remedy string) error {
	if other == [2]uint16{} || last < other[0] || other[1] < first {
		return nil
	}
	return fmt.Errorf("SNAT ports %d-%d overlap %s %d-%d: %s", first, last, name, other[0], other[1], remedy)
}
