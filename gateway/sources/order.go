package sources

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
)

// Order returns the gateways in the order in which routers prefer them for a source address: the
// owner, and then the others by hash. So the flows of a gateway that fails go to one other gateway
// for each of its addresses, and all gateways compute the same order.
func Order(address netip.Addr, owner string, gateways []string) []string {
	list := slices.Clone(gateways)
	slices.SortFunc(list, func(a, b string) int {
		if a == owner || b == owner {
			return cmp.Compare(rank(a, owner), rank(b, owner))
		}
		return cmp.Or(cmp.Compare(hash(address, a), hash(address, b)), cmp.Compare(a, b))
	})
	return list
}

func rank(name, owner string) int {
	if name == owner {
		return 0
	}
	return 1
}

func hash(address netip.Addr, name string) uint64 {
	bytes := address.As16()
	sum := sha256.Sum256(append(bytes[:], name...))
	return binary.BigEndian.Uint64(sum[:])
}
