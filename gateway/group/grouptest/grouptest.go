// Package grouptest has a flow table made of maps, for tests of the streams between gateways.
package grouptest

import (
	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/nat/header"
)

// Table is a group.Store. A record's number is used again as soon as its copy has ended.
type Table struct {
	Records map[header.Tuple]group.Record // by reply tuple
	numbers map[header.Tuple]uint32
	free    []uint32
	copies  []header.Tuple // by number
}

// NewTable returns an empty table.
func NewTable() *Table {
	return &Table{
		Records: map[header.Tuple]group.Record{}, numbers: map[header.Tuple]uint32{},
		copies: make([]header.Tuple, 1), // 0 is no record
	}
}

// Find returns the record of the copy with a record's reply tuple.
func (t *Table) Find(r *group.Record) uint32 { return t.numbers[r.Reply] }

// Put makes or changes a copy.
func (t *Table) Put(n uint32, r *group.Record) (uint32, group.Refusal) {
	switch {
	case n != 0:
	case len(t.free) > 0:
		n, t.free = t.free[len(t.free)-1], t.free[:len(t.free)-1]
	default:
		n = uint32(len(t.copies))
		t.copies = append(t.copies, header.Tuple{})
	}
	t.copies[n], t.numbers[r.Reply], t.Records[r.Reply] = r.Reply, n, *r
	return n, group.Accepted
}

// CopyState returns the state of a copy.
func (t *Table) CopyState(n uint32) conn.CopyState {
	return conn.CopyState{State: t.Records[t.copies[n]].State}
}

// Remove ends a copy, by which no datagram was forwarded.
func (t *Table) Remove(n uint32) group.Age {
	reply := t.copies[n]
	if t.numbers[reply] != n {
		return 1
	}
	delete(t.numbers, reply)
	delete(t.Records, reply)
	t.free = append(t.free, n)
	return 0
}

// End ends a copy, and returns its number.
func (t *Table) End(reply header.Tuple) (n uint32) {
	n = t.numbers[reply]
	t.Remove(n)
	return n
}

// Read returns the record of a copy.
func (t *Table) Read(n uint32) (group.Record, bool) {
	r, ok := t.Records[t.copies[n]]
	return r, ok && t.numbers[t.copies[n]] == n
}
