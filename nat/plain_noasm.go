//go:build !amd64 || noasm || race

package nat

import "sluice.dev/sluice/nat/header"

func translatePlain(
	m *header.Memory, frames []header.Frame, rewrites []header.Rewrite, ahead []header.Frame, both bool,
) {
	translatePlainGo(m, frames, rewrites, ahead, both)
}
