// Package view is what the announcer says of itself on a unix socket: `sluice announce`,
// `sluice-announcer status`, metrics and Events are made of it, so that they say the same.
package view

import (
	"net/netip"
	"time"
)

// View is what is announced, to whom and why, or why not. Its lists are in order.
type View struct {
	Node      string    `json:"node"`
	PID       int       `json:"pid"`
	Version   string    `json:"version"`
	StartedAt time.Time `json:"startedAt"`
	// Waiting is what is waited for before anything is announced; empty: nothing is.
	Waiting string `json:"waiting,omitempty"`
	// Stalled are the loops of the announcer that have stalled: what is announced may be out of
	// date.
	Stalled []string `json:"stalled,omitempty"`
	// Gateway is how far this gateway's VIPs are announced: yes, leaving, last resort, no; Why says
	// why, and Until when it ends if nothing happens before.
	Gateway string     `json:"gateway"`
	Why     string     `json:"why,omitempty"`
	Until   *time.Time `json:"until,omitempty"`

	Peers    []Peer    `json:"peers"`
	VIPs     []VIP     `json:"vips"`
	Problems []Problem `json:"problems"`
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
	Routes  int        `json:"routes"`        // that it is told, when the session is up
	Why     string     `json:"why,omitempty"` // it is not up, or is to begin anew
}

// VIP is one address of Services.
type VIP struct {
	Address  netip.Addr `json:"address"`
	Services []string   `json:"services"` // namespace/name
	Pool     string     `json:"pool,omitempty"`
	To       []Line     `json:"to"`
}

// The states of a Line.
const (
	Announced = "announced"
	Leaving   = "leaving" // announced, and routers prefer others
	// LastResort: announced so that routers prefer any other gateway, also one that leaves.
	LastResort = "last_resort"
	Standby    = "standby" // at layer 2: another gateway of the link has it
	Waiting    = "waiting" // for the session, or to join the link
	Not        = "no"
)

// Layer2 is the name of the speaker whose peers are gateways of the same link.
const Layer2 = "layer2"

// Line is one announcement of a VIP, or why there is none.
type Line struct {
	Speaker string `json:"speaker"`
	To      string `json:"to,omitempty"`   // the peer, or the link
	What    string `json:"what,omitempty"` // the prefix
	With    string `json:"with,omitempty"` // communities, local preference; who has it on the link
	State   string `json:"state"`          // announced, leaving, last_resort, standby, waiting, no
	Why     string `json:"why,omitempty"`  // it is not as State announced says; what is odd
}

// Problem is what is wrong with an object.
type Problem struct {
	Object string `json:"object"`
	Reason string `json:"reason"`
	Note   string `json:"note"`
}
