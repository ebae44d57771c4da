// Package view is the announcer's status, which it serves on a unix socket. `sluice announce`,
// `sluice-announcer status`, metrics and Events all use it, so that they agree.
package view

import (
	"net/netip"
	"time"
)

// View is the state of all announcements, with reasons. Its lists are in order.
type View struct {
	Node      string    `json:"node"`
	PID       int       `json:"pid"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"startedAt"`
	// Waiting is what the announcer waits for before it announces anything; empty: nothing.
	Waiting string `json:"waiting,omitempty"`
	// Stalled are stalled loops of the announcer: with one, the View may be out of date.
	Stalled []string `json:"stalled,omitempty"`
	// Gateway is how far this gateway's VIPs are announced: yes, leaving, last resort, no. Why is
	// the reason, and Until the time when it changes without an event.
	Gateway string     `json:"gateway"`
	Why     string     `json:"why,omitempty"`
	Until   *time.Time `json:"until,omitempty"`

	Peers    []Peer    `json:"peers"`
	VIPs     []VIP     `json:"vips"`
	Sources  []Source  `json:"sources,omitempty"`
	Problems []Problem `json:"problems"`
}

// NotReady returns why the announcer must not count as ready although no loop has stalled: a
// rollout must not continue with an announcer that announces nothing. A gateway that is not
// announced for a reason (Why) is ready.
func (v *View) NotReady() []string {
	if v.Waiting == "" {
		return nil
	}
	return []string{"nothing is announced yet: " + v.Waiting}
}

// Peer is one session, or another gateway of a link (Layer2).
type Peer struct {
	Speaker string     `json:"speaker"`
	Name    string     `json:"name"`
	Address string     `json:"address"`
	ASN     uint32     `json:"asn,omitempty"`
	Up      bool       `json:"up"`
	State   string     `json:"state"`
	Since   *time.Time `json:"since,omitempty"`
	BFD     string     `json:"bfd,omitempty"`
	Routes  int        `json:"routes"`        // announced to it, while the session is up
	Why     string     `json:"why,omitempty"` // why it is not up, or must begin again
}

// VIP is an address of Services and its announcements.
type VIP struct {
	Address  netip.Addr `json:"address"`
	Services []string   `json:"services"` // namespace/name
	Pool     string     `json:"pool,omitempty"`
	To       []Line     `json:"to"`
}

// Source is a source address of the gateway's group and its announcements.
type Source struct {
	Address netip.Addr `json:"address"`
	// Rank is the number of gateways that routers prefer to this one, if they announce it; 0 for
	// the owner.
	Rank int    `json:"rank"`
	To   []Line `json:"to"`
}

// The states of a Line.
const (
	Announced = "announced"
	Leaving   = "leaving" // announced, but routers prefer others
	// LastResort: announced, but routers prefer any other gateway, also a leaving one.
	LastResort = "last_resort"
	Standby    = "standby" // at layer 2: another gateway of the link has it
	Waiting    = "waiting" // for the session, or for the end of joining the link
	Not        = "no"
)

// Layer2 is the name of the speaker whose peers are other gateways of the link.
const Layer2 = "layer2"

// Line is one announcement of an address, or the reason why there is none.
type Line struct {
	Speaker string `json:"speaker"`
	To      string `json:"to,omitempty"`   // the peer, or the link
	What    string `json:"what,omitempty"` // the prefix
	With    string `json:"with,omitempty"` // communities, local preference; the owner on the link
	State   string `json:"state"`          // announced, leaving, last_resort, standby, waiting, no
	Why     string `json:"why,omitempty"`  // why State is not announced, or a remark
}

// Problem is a problem of an object.
type Problem struct {
	Object string `json:"object"`
	Reason string `json:"reason"`
	Note   string `json:"note"`
}
