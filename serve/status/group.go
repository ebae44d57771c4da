package status

import "net/netip"

// GroupView describes the group of gateways that keep copies of each other's flows.
type GroupView struct {
	Members []GroupMemberView `json:"members"` // the others, by name
	Sources []GroupSourceView `json:"sources"` // of this gateway
	// Listener is why other gateways cannot connect; empty if they can.
	Listener string `json:"listener,omitempty"`
	// Complete: this gateway knows all flows of its source addresses that others have.
	Complete bool `json:"complete"`
	// HeldPorts are source ports of ended flows that another gateway may still have.
	HeldPorts int `json:"heldPorts"`
	// Flows counts flows since the start by whether others had a copy before the client got an
	// answer: protected, or the reason if not (no_member, refused, late, no_room).
	Flows map[string]uint64 `json:"flows"`
	// AnswerWait is how long answers to SYNs waited for copies of their flows, since the start.
	AnswerWait HistogramView `json:"answerWait"`
}

// GroupMemberView is another gateway of the group.
type GroupMemberView struct {
	Name    string         `json:"name"`
	Address netip.AddrPort `json:"address"`
	// HasOurFlows: it has all flows of this gateway. WeHaveItsFlows: this gateway has all of its
	// flows.
	HasOurFlows    bool `json:"hasOurFlows"`
	WeHaveItsFlows bool `json:"weHaveItsFlows"`
	// Copies is the number of its flows here, Lag the number of changes of flows of this gateway
	// that it has not acknowledged.
	Copies int    `json:"copies"`
	Lag    int    `json:"lag"`
	Error  string `json:"error,omitempty"` // why the last stream has ended, or flows are refused
}

// SourceOpening is the state of a source address whose ports new flows get as soon as workers have
// it.
const SourceOpening = "opening"

// GroupSourceView is a source address of this gateway: open (new flows get its ports), opening,
// spare, or closed (others may know flows of it that this gateway does not).
type GroupSourceView struct {
	Address netip.Addr `json:"address"`
	State   string     `json:"state"`
}
