package pulse

import (
	"encoding/json"
	"net/netip"
	"slices"
)

// askChanges is the line by which a reader asks for Changes instead of all VIPs. If the gateway or
// the reader has an older version without it, each line has all VIPs.
const askChanges = "changes\n"

// Changes are the VIPs in which a State differs from the one in the previous line.
type Changes struct {
	VIPs []VIP        `json:"vips,omitempty"` // new or changed ones
	Gone []netip.Addr `json:"gone,omitempty"`
}

// message is a line: a State, without its VIPs if Changes is not nil.
type message struct {
	State
	Changes *Changes `json:"changes,omitempty"`
}

// changesOf returns the changes from one sorted list of VIPs to another.
func changesOf(before, now []VIP) (c Changes) {
	for i, j := 0, 0; i < len(before) || j < len(now); {
		order := 0
		switch {
		case i == len(before):
			order = 1
		case j == len(now):
			order = -1
		default:
			order = before[i].Address.Compare(now[j].Address)
		}
		switch {
		case order < 0:
			c.Gone = append(c.Gone, before[i].Address)
			i++
		case order > 0:
			c.VIPs = append(c.VIPs, now[j])
			j++
		default:
			if !before[i].Equal(&now[j]) {
				c.VIPs = append(c.VIPs, now[j])
			}
			i, j = i+1, j+1
		}
	}
	return c
}

// apply returns a sorted list with the changes. It does not modify the given list.
func (c *Changes) apply(list []VIP) []VIP {
	list = slices.Clone(list)
	for _, a := range c.Gone {
		if i, there := search(list, a); there {
			list = slices.Delete(list, i, i+1)
		}
	}
	for _, v := range c.VIPs {
		i, there := search(list, v.Address)
		if there {
			list[i] = v
		} else {
			list = slices.Insert(list, i, v)
		}
	}
	return list
}

// addresses returns the addresses of all changes.
func (c *Changes) addresses() []netip.Addr {
	list := slices.Clone(c.Gone)
	for i := range c.VIPs {
		list = append(list, c.VIPs[i].Address)
	}
	return list
}

// encode returns the line for a state after another one. It has all VIPs if before is nil or most
// of them change.
func encode(before, now *State) ([]byte, error) {
	m := message{State: *now}
	if before != nil {
		if c := changesOf(before.VIPs, now.VIPs); len(c.VIPs)+len(c.Gone) <= len(now.VIPs)/2 {
			m.VIPs, m.Changes = nil, &c
		}
	}
	body, err := json.Marshal(&m)
	return append(body, '\n'), err
}
