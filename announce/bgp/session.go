package bgp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/announce/kinds"
)

// restartTime is how long peers keep the routes of a process that restarts, in seconds (RFC 4724,
// section 3): a pod of a rollout that has to fetch its image may take a minute.
const restartTime = 120

// deferralTime is how long after a restart the first routes are sent, at the latest, in seconds:
// GoBGP waits for the End-of-RIB of all peers, for the choice of routes that is not made here.
const deferralTime = 1

// anewEvery is how often a session that ends is begun anew at once. One that does not stay up is
// left to GoBGP, which connects after 7 s: 5 in state Idle, and up to 2.
const anewEvery = 10 * time.Second

// families are IPv4 and IPv6 unicast.
var families = map[bool]*api.Family{
	true:  {Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST},
	false: {Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST},
}

// session is one peer as GoBGP has it. All but named is guarded by Speaker.mu. The goroutine that
// calls Apply alone writes what comes before up, and so reads that without it.
type session struct {
	peer *kinds.Peer
	// address is the router's, with a zone for a link-local one. For an unnumbered peer it is found
	// among the interface's neighbours.
	address netip.Addr
	named   netip.Addr // the address in the set of neighbours that policies name the peer by
	// ours are the next hops for routes of the other family than the session's addresses.
	ours      map[bool]netip.Addr // by Is4
	notServed string              // the interface of the next hops, if the gateway does not serve it
	// begun is when GoBGP was given the peer; zero: it does not have it. What GoBGP says arrives
	// late: what it says of a time before is about a session that is not there any more.
	begun  time.Time
	timers timers // as GoBGP was given them last

	up     bool
	opened timers    // of this side, when it came up
	again  bool      // it is to begin anew: the peer ended it, and GoBGP would wait before it connects
	anew   time.Time // when it was so last
	state  string    // as GoBGP said last, for people; nothing is decided by it
	since  time.Time
	why    string
	limit  prefixLimit
}

func newSession(p *kinds.Peer) *session { return &session{peer: p, address: p.Address} }

// timers are those of GoBGP's configuration.
type timers struct{ hold, keepalive, connect time.Duration }

func timersOf(p *kinds.Peer) timers { return timers{p.Hold, p.Keepalive, p.Connect} }

// hears reports whether what GoBGP said of an address at a time is about the session.
func (s *session) hears(address netip.Addr, at time.Time) bool {
	return !s.begun.IsZero() && !at.Before(s.begun) && sameNeighbour(s.address, address)
}

// configuration is the peer in GoBGP's words. restarting: routes of a process before may be there.
func (s *session) configuration(restarting bool) *api.Peer {
	p := s.peer
	c := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: s.address.String(), PeerAsn: p.PeerASN, LocalAsn: p.MyASN,
			AuthPassword: p.Password, Description: p.Name},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: uint64(p.Hold / time.Second), KeepaliveInterval: uint64(p.Keepalive / time.Second),
			ConnectRetry: uint64(p.Connect / time.Second), IdleHoldTimeAfterReset: uint64(max(1,
				p.Connect/time.Second)),
		}},
		Transport: &api.Transport{RemotePort: uint32(p.Port)},
	}
	if p.Source.IsValid() {
		c.Transport.LocalAddress = p.Source.String()
	}
	if p.MultiHop {
		c.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: 255}
	}
	for _, is4 := range []bool{true, false} {
		if !p.Carries(map[bool]netip.Addr{true: netip.IPv4Unspecified(), false: netip.IPv6Unspecified()}[is4]) {
			continue
		}
		c.AfiSafis = append(c.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: families[is4], Enabled: true},
			PrefixLimits:      &api.PrefixLimit{Family: families[is4], MaxPrefixes: maxPrefixes},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: p.Restart}},
		})
	}
	if p.Restart {
		c.GracefulRestart = &api.GracefulRestart{Enabled: true, RestartTime: restartTime, DeferralTime: deferralTime,
			LocalRestarting: restarting}
	}
	return c
}

// nextHops finds this node's addresses on the interface towards a peer. After an error they are not
// known, as when the process is out of descriptors.
func nextHops(p *kinds.Peer, address netip.Addr) (map[bool]netip.Addr, error) {
	local := p.Source
	if !local.IsValid() {
		var err error
		if local, err = sourceTo(address); err != nil {
			return nil, err
		}
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		found := map[bool]netip.Addr{}
		here := p.Interface != "" && i.Name == p.Interface
		for _, a := range addresses {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, _ := netip.AddrFromSlice(n.IP)
			ip = ip.Unmap()
			here = here || ip == local.WithZone("")
			if ip.IsGlobalUnicast() && !found[ip.Is4()].IsValid() {
				found[ip.Is4()] = ip
			}
		}
		if here {
			return found, nil
		}
	}
	return nil, nil
}

// sourceTo returns the address that packets to another one leave with; not valid if no route leads
// there. Nothing is sent.
func sourceTo(a netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 179)))
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) {
		return netip.Addr{}, nil
	}
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	if at, ok := conn.LocalAddr().(*net.UDPAddr); ok {
		return at.AddrPort().Addr().Unmap(), nil
	}
	return netip.Addr{}, nil
}

// hop returns the next hop to tell for routes of a family; not valid: GoBGP's choice, which is the
// end of the session here.
func (s *session) hop(is4 bool) (hop netip.Addr, err error) {
	if err := s.notServedError(); err != nil {
		return netip.Addr{}, err
	}
	if s.peer.Interface != "" || s.address.Is4() == is4 {
		return netip.Addr{}, nil // unnumbered: RFC 8950
	}
	if h := s.ours[is4]; h.IsValid() {
		return h, nil
	}
	return netip.Addr{}, fmt.Errorf("the interface towards %v has no IPv%d address to be the next hop", s.address,
		map[bool]int{true: 4, false: 6}[is4])
}
