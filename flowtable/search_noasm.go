//go:build !amd64 || noasm || race

package flowtable

import (
	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

func fetchBuckets(geo *geometries, secret *HashKey, group []Search) {
	fetchBucketsGo(geo, secret, group)
}

func fetchFlows(geo *geometries, group []Search) { fetchFlowsGo(geo, group) }

func match(geo *geometries, group []Search, flows []*Flow, rewrites []header.Rewrite, steady *conn.Steady,
	now uint32) int {
	return matchGo(geo, group, flows, rewrites, steady, now)
}
