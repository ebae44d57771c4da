package services

import "sluice.dev/sluice/nat/header"

// Outcome is the snapshot's decision about a packet that belongs to no flow.
type Outcome uint8

const (
	// Admit: a backend of the rule's set gets it.
	Admit Outcome = iota
	// Unserved: its destination is no frontend.
	Unserved
	// Denied: its source is not in the frontend's source ranges. It is dropped silently, whether or
	// not there are endpoints.
	Denied
	// Reject: no endpoint anywhere can take it; ICMP port unreachable.
	Reject
	// Silence: endpoints exist, but the traffic policy excludes them all; dropped.
	Silence
)

// String returns the outcome's name.
func (o Outcome) String() string {
	return [...]string{"admit", "unserved", "denied", "reject", "silence"}[o]
}

// Decision is an outcome and its reasons.
type Decision struct {
	Outcome  Outcome
	Frontend *Frontend // nil if Unserved
	Pod      bool      // the client is one of Snapshot.Pods
	Rule     *Rule     // the frontend's rule for this kind of client; nil if Unserved or Denied
}

// Decide returns the decision about a new flow with this tuple, client to frontend. It checks in
// the same order as kube-proxy's nftables and IPVS modes (k8s.io/kubernetes
// pkg/proxy/nftables/proxier.go): source ranges before endpoints. It is pure: a packet and its dry
// run get the same decision.
func (s *Snapshot) Decide(t *header.Tuple) Decision {
	f := s.Frontend(t)
	if f == nil {
		return Decision{Outcome: Unserved}
	}
	if f.Allowed != nil && !f.Allowed.Contains(t.Src) {
		return Decision{Outcome: Denied, Frontend: f}
	}
	d := Decision{Frontend: f, Rule: &f.Outside}
	if s.Pods.Contains(t.Src) {
		d.Pod, d.Rule = true, &f.Pod
	}
	if len(d.Rule.Set.Backends) == 0 {
		d.Outcome = Reject
		if d.Rule.Set.Empty == EmptyDrop {
			d.Outcome = Silence
		}
	}
	return d
}
