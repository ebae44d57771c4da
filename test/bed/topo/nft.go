package topo

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// NFT loads rules into the host's nftables, as nft -f reads them.
func (h *Host) NFT(ctx context.Context, rules string) error {
	return h.Run(func() error {
		c := exec.CommandContext(ctx, "nft", "-f", "-")
		c.Stdin = strings.NewReader(rules)
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
}
