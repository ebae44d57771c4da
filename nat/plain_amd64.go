//go:build !noasm && !race

package nat

import "sluice.dev/sluice/nat/header"

// The race detector cannot see into this; with it the twin of plain_go.go is used.
//
//go:noescape
func translatePlain(m *header.Memory, frames []header.Frame, rewrites []header.Rewrite, ends []header.Frame)
