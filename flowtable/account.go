package flowtable

import (
	"sync/atomic"
	"unsafe"
)

// account has the start of a flow. The record of the flow has no room for it, and a table without a
// Log has no accounts. Accounts lie in memory of their own, at the numbers of the records, and outlive the
// process with the records.
//
//	0  start    Time of Create without its low 16 bits (65 us), the low half of the flow's sum
//
// The sum says whose account it is: a record that a process without a Log has made has an old
// account, or none.
type account struct {
	start atomic.Uint64
	_     [3]uint64
}

const (
	accountBytes = 32
	_            = -(unsafe.Sizeof(account{}) ^ accountBytes)
)

const accountSum = 1<<16 - 1

// accounts returns the number of accounts of an arena: record 0 has one, too.
func (a *arena) accounts() int { return int(a.records) + 1 }

// AccountBytes returns the size of the accounts of all records, in bytes.
func (t *Table) AccountBytes() int64 {
	return accountBytes * int64(t.arenas[0].accounts()+t.arenas[1].accounts())
}

// open begins the account of a pending flow. The flow's creator calls it.
func (a *account) open(f *Flow, now Time) {
	a.start.Store(uint64(now)&^accountSum | uint64(f.sum)&accountSum)
}

// startOf returns when a flow began, or 0 if the account is not the flow's.
func (a *account) startOf(f *Flow) Time {
	s := a.start.Load()
	if s&accountSum != uint64(f.sum)&accountSum {
		return 0
	}
	return Time(s &^ accountSum)
}
