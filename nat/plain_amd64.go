//go:build !noasm && !race

package nat

import "sluice.dev/sluice/nat/header"

// The race detector does not see this function's memory accesses. Race builds use the Go twin in
// plain_go.go.
//
//go:noescape
func translatePlain(m *header.Memory, frames []header.Frame, rewrites []header.Rewrite, ahead []header.Frame, both bool)
