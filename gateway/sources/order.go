package sources

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
)

// Order returns the gateways in the order in which routers prefer them for the source addresses of
// one of them, the owner: the owner, then the others by hash. All gateways compute the same order
// for an owner. It differs between owners, so the flows of lost gateways are spread.
func Order(owner string, gateways []string) []string {
	others := slices.DeleteFunc(slices.Clone(gateways), func(name string) bool { return name == owner })
	slices.SortFunc(others, func(a, b string) int {
		return cmp.Or(cmp.Compare(hash(owner, a), hash(owner, b)), cmp.Compare(a, b))
	})
	return slices.Insert(others, 0, owner)
}

// hash returns a hash of two names, neither of which has a slash.
func hash(owner, name string) uint64 {
	sum := sha256.Sum256([]byte(owner + "/" + name))
	return binary.BigEndian.Uint64(sum[:])
}
