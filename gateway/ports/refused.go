package ports

import "sluice.dev/sluice/internal/perdevice"

// refusals is a file with the MTUs at which devices took generic mode in mode auto. The process
// that takes a program over reads there whether native mode may be possible now: to find out, it
// has to take the generic program off.
type refusals = perdevice.File[refusal]

type refusal struct {
	MTU int `json:"mtu"`
}

// refusedAt returns the MTU at which the port's device took generic mode; 0 if that is not known.
func (p *port) refusedAt(r *refusals, ifindex int) int {
	known, _ := r.Get(p.name, ifindex)
	return known.MTU
}
