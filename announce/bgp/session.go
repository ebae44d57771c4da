package bgp

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/announce/kinds"
)

// restartTime is how long peers keep the routes of a restarting process, in seconds (RFC 4724,
// section 3): a pod of a rollout that must pull its image may take a minute.
const restartTime = 120

// deferralTime is the longest delay of the first routes after a restart, in seconds. GoBGP waits
// for the End-of-RIB of all peers before it selects routes; no routes are selected here.
const deferralTime = 1

// restartEvery is the least time between two immediate restarts of an ended session. A session that
// does not stay up that long is left to GoBGP, which connects after 7 s: 5 in state Idle, up to 2
// more.
const restartEvery = 10 * time.Second

// families are IPv4 and IPv6 unicast.
var families = map[bool]*api.Family{
	true:  {Afi: api.Family_AFI_IP, Safi: api.Family_SAFI_UNICAST},
	false: {Afi: api.Family_AFI_IP6, Safi: api.Family_SAFI_UNICAST},
}

// session is the session with one peer. Speaker.mu guards all fields except named. Only the
// goroutine that calls Apply writes the fields before up, and so reads them without the lock.
type session struct {
	peer *kinds.Peer
	// address is the router's, with a zone if it is link-local. For an unnumbered peer it comes
	// from the interface's neighbour table.
	address       netip.Addr
	policyAddress netip.Addr // the address in the neighbour set by which policies name the peer
	// ours are the next hops for routes of the family that the session's addresses do not have.
	familyHops map[bool]netip.Addr // by Is4
	notServed  string              // the interface of the next hops, if the gateway does not serve it
	heldBy     string              // the BGPPeer that has the session with the router; empty: this one
	// begun is when the peer was added to GoBGP; zero: GoBGP does not have it. GoBGP's events
	// arrive late: an event with an earlier time is about a previous session.
	begun  time.Time
	timers timers // as last set in GoBGP

	up            bool
	opened        timers    // this side's, when the session came up
	restartNeeded bool      // it must begin again: the peer ended it, and GoBGP would wait before it connects
	lastRestart   time.Time // when again was set last
	state         string    // GoBGP's last state, only for display
	since         time.Time
	why           string // it is not up
	limit         prefixLimit
}

func newSession(p *kinds.Peer) *session { return &session{peer: p, address: p.Address} }

// timers are a peer's timers in GoBGP's configuration.
type timers struct{ hold, keepalive, connect time.Duration }

func timersOf(p *kinds.Peer) timers { return timers{p.Hold, p.Keepalive, p.Connect} }

// concerns reports whether GoBGP's event at a time about an address concerns the session.
func (s *session) concerns(address netip.Addr, at time.Time) bool {
	return !s.begun.IsZero() && !at.Before(s.begun) && sameNeighbour(s.address, address)
}

// configuration returns GoBGP's configuration of the peer. restarting: the previous process may
// have announced routes.
func (s *session) configuration(restarting bool) *api.Peer {
	p := s.peer
	c := &api.Peer{
		Conf: &api.PeerConf{NeighborAddress: s.address.String(), PeerAsn: p.PeerASN, LocalAsn: p.MyASN,
			AuthPassword: p.Password}, // no name: another one would need a new session
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

// nextHops returns this node's addresses on the interface towards a peer, by Is4. An error means
// that they are unknown, for example because the process is out of descriptors.
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

// noRoute are the results of connect if no packet can leave: there is no route, or one of the type
// unreachable, blackhole (EINVAL) or prohibit (EACCES) of ip-route(8), or no source address for it.
var noRoute = []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES, unix.EADDRNOTAVAIL}

// sourceTo returns the source address of packets to an address; not valid if there is no route. It
// sends no packet.
func sourceTo(a netip.Addr) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 179)))
	if slices.ContainsFunc(noRoute, func(e unix.Errno) bool { return errors.Is(err, e) }) {
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

// hop returns the next hop for routes of a family; not valid: GoBGP uses the local address of the
// session.
func (s *session) hop(is4 bool) (hop netip.Addr, err error) {
	if err := cmp.Or(s.heldError(), s.notServedError()); err != nil {
		return netip.Addr{}, err
	}
	if s.peer.Interface != "" || s.address.Is4() == is4 {
		return netip.Addr{}, nil // unnumbered: RFC 8950
	}
	if h := s.familyHops[is4]; h.IsValid() {
		return h, nil
	}
	return netip.Addr{}, fmt.Errorf("the interface towards %v has no IPv%d address that can be the next hop", s.address,
		map[bool]int{true: 4, false: 6}[is4])
}
