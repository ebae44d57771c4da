package bgp

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/server"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/bfd"
	"sluice.dev/sluice/announce/kinds"
)

// bfdTimeout is how long a BFD session may take to come up before that is a problem. Two ends that
// send a packet a second take 3 s.
const bfdTimeout = 5 * time.Second

// applyBFD sets the BFD sessions: one for each of GoBGP's peers that has a bfdProfile.
func (s *Speaker) applyBFD() {
	var list []bfd.Peer
	s.mu.Lock()
	for _, session := range s.sessions {
		p := session.peer
		if p.BFD == nil || session.begun.IsZero() {
			continue
		}
		list = append(list, bfd.Peer{Name: p.Name, Address: session.address, Source: p.Source, Begun: session.begun,
			Parameters: bfd.Parameters{Receive: p.BFD.Receive, Transmit: p.BFD.Transmit, Multiplier: p.BFD.Multiplier}})
	}
	s.mu.Unlock()
	s.bfd.Set(list)
}

// endFailed ends the BGP session with a router that BFD has lost, if it is still up. A goroutine of
// the Endpoint calls it.
func (s *Speaker) endFailed(b *server.BgpServer, router netip.Addr, why string) {
	s.mu.Lock()
	up := false
	for _, session := range s.sessions {
		up = up || session.up && session.address == router
	}
	s.mu.Unlock()
	if !up {
		return
	}
	err := b.ResetPeer(context.Background(), &api.ResetPeerRequest{Address: router.String(),
		Communication: "BFD is down: " + why})
	if err != nil {
		s.log.Warn("the BGP session of a router that BFD has lost does not end", "address", router, "error", err)
	}
}

// reportBFD returns the state of a peer's BFD session, and adds a problem if it should be up. The
// caller holds s.mu.
func (s *Speaker) reportBFD(session *session, r *announce.Report) string {
	if s.bfd == nil || session.begun.IsZero() {
		return "none"
	}
	status, known := s.bfd.Status(session.address)
	if !known {
		return "none"
	}
	if status.State != bfd.Up && time.Since(status.Since) >= bfdTimeout {
		r.Problems = append(r.Problems, kinds.Problem{About: session.peer.Ref, Reason: kinds.BFDNotUp,
			Note: fmt.Sprintf("bfdProfile: BFD with %v is not up: %s; meanwhile a router that fails is found after "+
				"the hold time", session.address, status.Why)})
	}
	return status.State.String()
}
