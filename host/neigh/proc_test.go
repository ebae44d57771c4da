//go:build root

package neigh

import (
	"net"
	"os"

	"sluice.dev/sluice/fastpath/nexthop"
)

func writeProc(file, value string) error { return os.WriteFile(file, []byte(value), 0o644) }

func peerMAC(h *nexthop.Hop) net.HardwareAddr { return h.DstMAC[:] }
