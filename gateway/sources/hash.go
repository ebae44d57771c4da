package sources

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
)

// Owner is a gateway with its source addresses.
type Owner struct {
	Name      string
	Addresses []netip.Addr
}

// Hash returns a hash of two gateways and their source addresses, in any order. Two gateways that
// exchange flows must have the same hash. Otherwise an address that moves from one to the other
// could have two owners, as long as one of them runs with the earlier list.
func Hash(a, b Owner) uint64 {
	texts := []string{a.text(), b.text()}
	slices.Sort(texts)
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", texts))
	return binary.BigEndian.Uint64(sum[:])
}

func (o Owner) text() string {
	addresses := slices.SortedFunc(slices.Values(o.Addresses), netip.Addr.Compare)
	return fmt.Sprint(o.Name, addresses)
}
