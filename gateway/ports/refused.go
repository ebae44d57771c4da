package ports

import "sluice.dev/sluice/internal/statefile"

// refusals is a file with the MTUs at which devices chose generic mode in mode auto. A process that
// takes over a generic program reads there whether native mode may be possible now; to try, it
// would have to detach the program.
type refusals = statefile.Devices[refusal]

type refusal struct {
	MTU int `json:"mtu"`
}

// refusedAt returns the MTU at which the port's device chose generic mode; 0 if it is unknown.
func (p *port) refusedAt(r *refusals, ifindex int) int {
	known, _ := r.Get(p.name, ifindex)
	return known.MTU
}
