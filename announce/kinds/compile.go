package kinds

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defaults. They are MetalLB's if it has one.
const (
	defaultHold    = 90 * time.Second // RFC 4271, section 10
	defaultConnect = 10 * time.Second
	minHold        = 3 * time.Second // RFC 4271, section 4.2
	bgpPort        = 179

	defaultInterval   = 300 * time.Millisecond
	minInterval       = 10 * time.Millisecond
	maxInterval       = time.Minute
	defaultMultiplier = 3
)

func newPeer(name string, s *PeerSpec) (*Peer, error) {
	p := &Peer{Name: name, MyASN: s.MyASN, PeerASN: s.PeerASN, Interface: s.Interface, Port: s.PeerPort,
		Password: s.Password, Restart: s.EnableGracefulRestart, MultiHop: s.EBGPMultiHop,
		DualStack: s.DualStackAddressFamily, Hold: defaultHold, Connect: defaultConnect}
	var errs []error
	note := func(err error) { errs = append(errs, err) } // Join drops nil
	if p.Port == 0 {
		p.Port = bgpPort
	}
	if s.MyASN == 0 {
		note(errors.New("myASN is missing: the AS number of this side"))
	}
	note(p.ends(s))
	note(address("routerID", s.RouterID, &p.RouterID))
	if p.RouterID.IsValid() && !p.RouterID.Is4() {
		note(fmt.Errorf("routerID %q: must have the form of an IPv4 address", s.RouterID))
	}
	note(p.timers(s))
	note(checkPassword(s.Password))
	if s.PasswordSecret.Namespace != "" && s.PasswordSecret.Name == "" {
		note(errors.New("passwordSecret: name is missing"))
	}
	if s.PasswordSecret.Name != "" {
		if s.Password != "" {
			note(errors.New("password and passwordSecret are both set: remove one"))
		}
		p.passwordRef = s.PasswordSecret.Name
	}
	var err error
	p.NodeLabels, err = newSelectors("nodeSelectors", s.NodeSelectors)
	note(err)
	return p, errors.Join(errs...)
}

// ends parses the addresses of both ends of the session.
func (p *Peer) ends(s *PeerSpec) error {
	var errs []error
	note := func(err error) { errs = append(errs, err) } // Join drops nil
	note(address("peerAddress", s.PeerAddress, &p.Address))
	note(address("sourceAddress", s.SourceAddress, &p.Source))
	switch {
	case s.Interface == "" && s.PeerAddress == "":
		note(errors.New("peerAddress and interface are both missing: set one of them"))
	case s.Interface != "" && s.PeerAddress != "":
		note(errors.New("peerAddress and interface are both set: an unnumbered peer has no address"))
	case s.Interface == "" && s.PeerASN == 0:
		note(errors.New("peerASN is missing: the peer's AS number"))
	case p.Address.IsValid() && p.Address.IsLinkLocalUnicast():
		note(errors.New("peerAddress is a link-local one: name the interface instead, without an address"))
	case p.Source.IsValid() && p.Address.IsValid() && p.Source.Is4() != p.Address.Is4():
		note(errors.New("sourceAddress and peerAddress are of different families"))
	}
	if s.Interface != "" && (s.Password != "" || s.PasswordSecret.Name != "") {
		note(errors.New("password: not with an unnumbered peer"))
	}
	return errors.Join(errs...)
}

func address(field, text string, to *netip.Addr) (err error) {
	if text == "" {
		return nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return fmt.Errorf("%s: %q is no address", field, text)
	}
	*to = a
	return nil
}

// timers parses holdTime, keepaliveTime and connectTime, in whole seconds.
func (p *Peer) timers(s *PeerSpec) error {
	var errs []error
	read := func(field string, from *metav1.Duration, least time.Duration, to *time.Duration) {
		if from == nil {
			return
		}
		d := from.Duration
		if d < least || d > math.MaxUint16*time.Second || d%time.Second != 0 {
			errs = append(errs, fmt.Errorf("%s is %v: must be whole seconds, from %v to %v", field, d, least,
				math.MaxUint16*time.Second))
			return
		}
		*to = d
	}
	read("holdTime", s.HoldTime, minHold, &p.Hold)
	p.Keepalive = p.Hold / 3
	read("keepaliveTime", s.KeepaliveTime, time.Second, &p.Keepalive)
	read("connectTime", s.ConnectTime, time.Second, &p.Connect)
	if p.Keepalive > p.Hold {
		errs = append(errs, fmt.Errorf("keepaliveTime %v is longer than holdTime %v", p.Keepalive, p.Hold))
	}
	return errors.Join(errs...)
}

func newBFD(s *BFDProfileSpec) (*BFD, error) {
	b := &BFD{Receive: defaultInterval, Transmit: defaultInterval, Multiplier: defaultMultiplier}
	var errs []error
	read := func(field string, from *uint32, to *time.Duration) {
		if from == nil {
			return
		}
		*to = time.Duration(*from) * time.Millisecond
		if *to < minInterval || *to > maxInterval {
			errs = append(errs, fmt.Errorf("%s is %d: must be from 10 to 60000 ms", field, *from))
		}
	}
	read("receiveInterval", s.ReceiveInterval, &b.Receive)
	read("transmitInterval", s.TransmitInterval, &b.Transmit)
	if m := s.DetectMultiplier; m != nil {
		if *m < 2 || *m > math.MaxUint8 {
			errs = append(errs, fmt.Errorf("detectMultiplier is %d: must be from 2 to 255", *m))
		}
		b.Multiplier = uint8(*m)
	}
	return b, errors.Join(errs...)
}

func newAdvertisement(name string, s *AdvertisementSpec, alias map[string]Community) (*Advertisement, error) {
	a := &Advertisement{Name: name, Length4: 32, Length6: 128, LocalPref: s.LocalPref, peers: s.Peers}
	var errs []error
	length := func(field string, from *int32, most int, to *int) {
		if from == nil {
			return
		}
		if *from < 1 || int(*from) > most {
			errs = append(errs, fmt.Errorf("%s is %d: must be from 1 to %d", field, *from, most))
			return
		}
		*to = int(*from)
	}
	length("aggregationLength", s.AggregationLength, 32, &a.Length4)
	length("aggregationLengthV6", s.AggregationLengthV6, 128, &a.Length6)
	for _, text := range s.Communities {
		c, there := alias[text]
		if !there {
			var err error
			if c, err = ParseCommunity(text); err != nil {
				errs = append(errs, fmt.Errorf("communities: %w", err))
				continue
			}
		}
		a.Communities = append(a.Communities, c)
	}
	var err error
	if a.Selection, err = newSelection(&s.SelectionSpec); err != nil {
		errs = append(errs, err)
	}
	return a, errors.Join(errs...)
}

func newSelection(s *SelectionSpec) (to Selection, err error) {
	to.pools = s.IPAddressPools
	var errs [3]error
	to.poolLabels, errs[0] = newSelectors("ipAddressPoolSelectors", s.IPAddressPoolSelectors)
	to.NodeLabels, errs[1] = newSelectors("nodeSelectors", s.NodeSelectors)
	to.Services, errs[2] = newSelectors("serviceSelectors", s.ServiceSelectors)
	return to, errors.Join(errs[:]...)
}

// maxInterface is the longest name of an interface (IFNAMSIZ of linux/if.h, minus the final zero).
const maxInterface = 15

func newL2Advertisement(ref Ref, s *L2AdvertisementSpec) (*L2Advertisement, error) {
	a := &L2Advertisement{Ref: ref, Name: ref.Name, Interfaces: s.Interfaces}
	var errs []error
	for i, name := range s.Interfaces {
		if name == "" || len(name) > maxInterface || strings.ContainsAny(name, "/ \t\n") {
			errs = append(errs, fmt.Errorf("interfaces[%d]: %q is no name of an interface", i, name))
		}
	}
	var err error
	if a.Selection, err = newSelection(&s.SelectionSpec); err != nil {
		errs = append(errs, err)
	}
	return a, errors.Join(errs...)
}
