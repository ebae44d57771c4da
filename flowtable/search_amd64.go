//go:build !noasm && !race

package flowtable

import (
	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// The race detector does not see the memory accesses of these functions. Race builds use the Go
// twins in search_go.go.

//go:noescape
func fetchBuckets(geo *geometries, secret *HashKey, group []Search)

//go:noescape
func fetchFlows(geo *geometries, group []Search)

//go:noescape
func match(geo *geometries, group []Search, flows []*Flow, rewrites []header.Rewrite, steady *conn.Steady,
	now uint32) int
