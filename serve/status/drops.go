package status

import (
	"context"
	"net/http"
	"net/netip"
	"time"
)

// DropsKept is the time that samples of dropped packets are kept.
const DropsKept = 10 * time.Minute

// DropsView sums the dropped packets of a time by reason and Service, most packets first. The
// numbers are estimates: each sample of a dropped packet counts for the packets that it stands for,
// so that all with a reason add up to its counter, except that the samples of the last second may
// be missing.
type DropsView struct {
	Since time.Time  `json:"since"` // later than asked for if there are no older samples
	Until time.Time  `json:"until"`
	Drops []DropView `json:"drops"`
	// KernelProgram has the packets that the kernel program has dropped since it was loaded, by
	// name of the counter. There are no samples of them.
	KernelProgram map[string]uint64 `json:"kernelProgram"`
}

// DropView has the dropped packets with a reason of a Service.
type DropView struct {
	Reason string `json:"reason"`
	// Service is namespace/name, with :port-name if it has one; empty: the packets were of no flow,
	// and to and from no frontend.
	Service string    `json:"service,omitempty"`
	Packets uint64    `json:"packets"` // an estimate unless it equals Samples
	Samples uint64    `json:"samples"`
	Last    time.Time `json:"last"` // sample
	// Clients are the ten with the most packets, and MoreClients is the number of others among the
	// samples.
	Clients     []DropClient `json:"clients"`
	MoreClients int          `json:"moreClients,omitempty"`
}

// DropClient is a client with dropped packets, in either direction, or the source of packets
// without a client. Its address is empty if the packets had no valid IP header.
type DropClient struct {
	Client  netip.Addr `json:"client"`
	Packets uint64     `json:"packets"`
}

// drops answers GET /drops?since=TIME, or ?over=DURATION.
func (s *Server) drops(r *http.Request) (any, error) {
	since, err := parseSince(r)
	if err != nil {
		return nil, badRequest{err}
	}
	return s.gateway.Drops(since), nil
}

// Drops sums the packets dropped after a time, at most ten minutes ago.
func (c *Client) Drops(ctx context.Context, since time.Time) (DropsView, error) {
	return ask[DropsView](ctx, c, http.MethodGet, c.root+"/drops", sinceQuery(since))
}

// DropsOver sums the packets dropped in a time until now, by the daemon's clock.
func (c *Client) DropsOver(ctx context.Context, over time.Duration) (DropsView, error) {
	return ask[DropsView](ctx, c, http.MethodGet, c.root+"/drops", overQuery(over))
}
