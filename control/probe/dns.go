package probe

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/net/dns/dnsmessage"

	"sluice.dev/sluice/control/objects"
)

// askDNS sends a query, and wants an answer of its number without an error.
func askDNS(ctx context.Context, to netip.AddrPort, c *objects.Check) (string, error) {
	name, err := dnsmessage.NewName(c.Name)
	if err != nil {
		return "", err
	}
	id := uint16(rand.Uint32())
	query := dnsmessage.Message{
		Header: dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{
			Name: name, Type: dnsmessage.Type(c.Type), Class: dnsmessage.ClassINET,
		}},
	}
	packed, err := query.Pack()
	if err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, err := exchange(ctx, to, packed, answer)
	if err != nil {
		return "", err
	}
	var p dnsmessage.Parser
	h, err := p.Start(answer[:n])
	switch {
	case err != nil || h.ID != id || !h.Response:
		return "", errors.New("no answer to the query")
	case h.RCode != dnsmessage.RCodeSuccess:
		return "", fmt.Errorf("%s", h.RCode)
	}
	return "answered", nil
}
