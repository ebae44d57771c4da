package probe

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/nat/proxyproto"
)

// askDNS sends a query, and waits for an answer to it without an error. A message with another ID
// or another question is no answer to this query, and is ignored (RFC 5452, section 9.1).
func askDNS(
	ctx context.Context, to netip.AddrPort, c *objects.Check, began time.Time,
) (detail string, reads int, err error) {
	name, err := dnsmessage.NewName(c.Name)
	if err != nil {
		return "", reads, err
	}
	id := uint16(rand.Uint32())
	question := dnsmessage.Question{Name: name, Type: dnsmessage.Type(c.Type), Class: dnsmessage.ClassINET}
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{question},
	}
	packed, err := query.Pack()
	if err != nil {
		return "", reads, err
	}
	if c.ProxyHeader {
		packed = append([]byte(proxyproto.Local), packed...)
	}
	var rcode dnsmessage.RCode
	reads, err = exchange(ctx, to, packed, began, c.Timeout/attempts, attempts, func(b []byte) (fits bool) {
		rcode, fits = answerTo(id, &question, b)
		return fits
	})
	switch {
	case err != nil:
		return "", reads, err
	case rcode != dnsmessage.RCodeSuccess:
		return "", reads, fmt.Errorf("%s", rcode)
	}
	return "answered", reads, nil
}

// answerTo reports whether a datagram answers a query, and with which code. A server that could not
// read the query may leave the question out of its error.
func answerTo(id uint16, want *dnsmessage.Question, b []byte) (dnsmessage.RCode, bool) {
	var p dnsmessage.Parser
	h, err := p.Start(b)
	if err != nil || h.ID != id || !h.Response {
		return 0, false
	}
	list, err := p.AllQuestions()
	if err == nil && len(list) == 0 {
		return h.RCode, h.RCode != dnsmessage.RCodeSuccess
	}
	return h.RCode, err == nil && len(list) == 1 && list[0].Type == want.Type && list[0].Class == want.Class &&
		strings.EqualFold(list[0].Name.String(), want.Name.String())
}
