package sources

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/internal/statefile"
)

// Name is the name of both files.
const Name = "group.json"

// version must change when the meaning of a field changes.
const version = 1

// onDisk is the content of the file on the disk.
type onDisk struct {
	statefile.Version
	Incarnation uint64          `json:"incarnation"`
	Addresses   []SourceAddress `json:"addresses"`
}

// inMemory is the content of the file beside the flow table.
type inMemory struct {
	statefile.Version
	Incarnation uint64 `json:"incarnation"`
	// Boot identifies the boot in which the file was written. After another boot, a flow table on a
	// disk may lack flows that were not written to it in time. Earlier versions did not write this
	// field: the empty text counts as this boot, so that an upgrade loses no memory.
	Boot string `json:"boot"`
	// Sources are this gateway's present and former source addresses in the group. Flows of the
	// table may have them.
	Sources []netip.Addr `json:"sources,omitempty"`
}

// SourceAddress is a source address of this gateway and its state.
type SourceAddress struct {
	Address netip.Addr `json:"address"`
	State   State      `json:"state"`
}

// State is the name of a group.AddressState, as in the file.
type State string

// The states of an address.
const (
	Open   State = "open"   // new flows get its ports
	Spare  State = "spare"  // new flows get its ports after the next loss of memory
	Closed State = "closed" // ports may be in use by flows that only other gateways know
)

var states = map[State]group.AddressState{Open: group.Open, Spare: group.Spare, Closed: group.Closed}

// names is the inverse of states.
var names = map[group.AddressState]State{group.Open: Open, group.Spare: Spare, group.Closed: Closed}

// Config configures Sources.
type Config struct {
	Log *slog.Logger
	// Disk is a directory on a disk. Start creates it if it is missing.
	Disk string
	// Memory is the directory of the flow table.
	Memory string
	// Own are this gateway's source addresses: two of each family.
	Own []netip.Addr
	// Others are the source addresses of the other gateways.
	Others []netip.Addr
	// Kept: the flow table has the flows of the previous process.
	Kept bool
	Now  time.Time
}

// Sources has the states of this gateway's source addresses. Any goroutine may use it.
type Sources struct {
	disk   string
	memory string
	boot   string
	kept   bool
	former []netip.Addr

	saving sync.Mutex // one call of AllReached or Raise at a time

	mu          sync.Mutex // guards the next two; not held while a table is read or a file is written
	incarnation uint64
	families    []family // replaced as a whole
}

// family has the addresses of one family.
type family struct {
	addresses [2]netip.Addr
	states    group.Addresses
}

// Start reads the files, and records a loss of memory on the disk. No flow may get a source address
// of the group before it returns.
func Start(c Config) (*Sources, error) {
	if err := os.MkdirAll(c.Disk, 0o700); err != nil {
		return nil, fmt.Errorf("group.stateDir: %w", err)
	}
	boot, err := statefile.Boot()
	if err != nil {
		return nil, err
	}
	s := &Sources{disk: filepath.Join(c.Disk, Name), memory: filepath.Join(c.Memory, Name), boot: boot}
	var before onDisk
	if err := statefile.Load(s.disk, version, &before); err != nil {
		c.Log.Warn("the states of source addresses are lost: no flow is copied until this gateway has taken back "+
			"its flows from all other gateways", "error", err)
		before = onDisk{}
	}
	var table inMemory
	if err := statefile.Load(s.memory, version, &table); err != nil {
		c.Log.Warn("flows of the previous process count as lost for other gateways", "error", err)
		table = inMemory{}
	}
	s.families = familiesOf(c.Own, before.Addresses)
	s.former = slices.DeleteFunc(slices.Clone(table.Sources), func(a netip.Addr) bool {
		return slices.Contains(c.Own, a) || slices.Contains(c.Others, a)
	})
	s.kept = c.Kept && before.Incarnation != 0 && table.Incarnation == before.Incarnation && table.ofBoot(boot)
	if s.kept {
		s.incarnation = before.Incarnation
		return s, s.saveTable(c.Own)
	}
	// Other gateways refuse a lower incarnation, and the disk with the earlier ones may be lost.
	s.incarnation = max(before.Incarnation+1, uint64(c.Now.UnixNano()))
	for i := range s.families {
		s.families[i].states.MemoryLost()
	}
	if err := s.save(s.incarnation, s.families); err != nil {
		return nil, fmt.Errorf("group.stateDir: %w", err)
	}
	return s, s.saveTable(c.Own)
}

// saveTable writes the file beside the flow table.
func (s *Sources) saveTable(own []netip.Addr) error {
	table := inMemory{statefile.Version{Version: version}, s.incarnation, s.boot, slices.Concat(own, s.former)}
	if err := statefile.Save(s.memory, &table); err != nil {
		return fmt.Errorf("stateDir: %w", err)
	}
	return nil
}

// Raise makes the incarnation higher than above, which another gateway knows: the disk with the
// earlier incarnations was lost, and the clock was behind at the start. It reports whether it has
// changed the incarnation.
func (s *Sources) Raise(above uint64) (raised bool, err error) {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	before, families := s.incarnation, s.families
	s.mu.Unlock()
	if before > above {
		return false, nil
	}
	if err := s.save(above+1, families); err != nil {
		return false, fmt.Errorf("group.stateDir: %w", err)
	}
	var table inMemory
	err = statefile.Load(s.memory, version, &table)
	if table.Incarnation = above + 1; err == nil {
		err = statefile.Save(s.memory, &table)
	}
	if err != nil {
		return false, fmt.Errorf("stateDir: %w", err)
	}
	s.mu.Lock()
	s.incarnation = above + 1
	s.mu.Unlock()
	return true, nil
}

// Dissolve is called before the flow table changes without a group: it makes sure that a later
// process does not take the table for the table of this incarnation. It returns the source
// addresses that this gateway had.
func Dissolve(log *slog.Logger, memory string) (former []netip.Addr, err error) {
	file := filepath.Join(memory, Name)
	var table inMemory
	if err := statefile.Load(file, version, &table); err != nil {
		log.Warn("the source addresses that this gateway had in a group are not known: none is announced, and their "+
			"flows may end", "error", err)
		return nil, Forget(memory)
	}
	if len(table.Sources) == 0 {
		return nil, Forget(memory)
	}
	table.Incarnation = 0
	return table.Sources, statefile.Save(file, &table)
}

// Drop removes source addresses that no flow has any more from the file beside the flow table.
func Drop(memory string, gone []netip.Addr) error {
	file := filepath.Join(memory, Name)
	var table inMemory
	if err := statefile.Load(file, version, &table); err != nil {
		return err
	}
	table.Sources = slices.DeleteFunc(table.Sources, func(a netip.Addr) bool { return slices.Contains(gone, a) })
	if len(table.Sources) == 0 {
		return Forget(memory)
	}
	return statefile.Save(file, &table)
}

// ofBoot reports whether the file was written in a boot, or names none.
func (t *inMemory) ofBoot(boot string) bool { return t.Boot == boot || t.Boot == "" }

// Noted reports whether the flow table may have flows of other gateways of the group: the file
// beside it exists, was written in this boot, and was not written by Dissolve.
func Noted(memory string) bool {
	var table inMemory
	err := statefile.Load(filepath.Join(memory, Name), version, &table)
	boot, _ := statefile.Boot() // empty if it cannot be read
	return err == nil && table.Incarnation != 0 && table.ofBoot(boot)
}

// Void notes on a disk that this gateway was removed from its group: other gateways may have had
// its source addresses since, so they are closed until all others were reached.
func Void(disk string) error {
	file := filepath.Join(disk, Name)
	var c onDisk
	if err := statefile.Load(file, version, &c); err != nil || len(c.Addresses) == 0 {
		return nil // without a valid file all addresses are closed
	}
	c.Addresses = nil
	return statefile.Sync(file, &c)
}

// Forget removes the file beside the flow table. The caller also ends the flows in the table.
func Forget(memory string) error { return statefile.Remove(filepath.Join(memory, Name)) }

// Former returns the source addresses that this gateway had before, which flows may have still.
func (s *Sources) Former() []netip.Addr { return s.former }

// familiesOf returns the addresses of each family, with their states in the file. An address that
// is not in the file may have been another gateway's, so others may have records with it: it is
// closed.
func familiesOf(own []netip.Addr, before []SourceAddress) (list []family) {
	for _, is6 := range []bool{false, true} {
		of := slices.DeleteFunc(slices.Clone(own), func(a netip.Addr) bool { return a.Is6() != is6 })
		if len(of) == 0 {
			continue
		}
		f := family{addresses: [2]netip.Addr(of), states: group.Addresses{group.Closed, group.Closed}}
		for i, a := range f.addresses {
			if at := slices.IndexFunc(before, func(s SourceAddress) bool { return s.Address == a }); at >= 0 {
				if state, known := states[before[at].State]; known {
					f.states[i] = state
				}
			}
		}
		if f.states == (group.Addresses{group.Open, group.Open}) { // the addresses belonged to different pairs before
			f.states[1] = group.Closed
		}
		list = append(list, f)
	}
	return list
}

// save writes the states to the disk.
func (s *Sources) save(incarnation uint64, families []family) error {
	c := onDisk{statefile.Version{Version: version}, incarnation, addressesOf(families)}
	return statefile.Sync(s.disk, &c)
}

func addressesOf(families []family) (list []SourceAddress) {
	for _, f := range families {
		for i, a := range f.addresses {
			list = append(list, SourceAddress{a, names[f.states[i]]})
		}
	}
	return list
}

// Incarnation returns the number of this incarnation. kept reports whether the previous process had
// the same one: then the slots that other gateways know are still valid.
func (s *Sources) Incarnation() (n uint64, kept bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.incarnation, s.kept
}

// Addresses returns this gateway's addresses and their states.
func (s *Sources) Addresses() []SourceAddress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return addressesOf(s.families)
}

// OpenAddress returns the family's address from which new flows get ports; false if no address is
// open.
func (s *Sources) OpenAddress(is6 bool) (netip.Addr, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.families {
		if i := slices.Index(f.states[:], group.Open); i >= 0 && f.addresses[i].Is6() == is6 {
			return f.addresses[i], true
		}
	}
	return netip.Addr{}, false
}

// AllReached is called when this gateway knows all flows with its source addresses, and again while
// an address is closed. It changes the states (group.Addresses.AllReached), and reports whether it
// has opened an address. inUse reports whether a port of an address is in use or held. A call may
// take long: inUse reads a flow table, and the file is on a disk. The other methods do not wait for
// it: the streams of the group and the control loop call them.
func (s *Sources) AllReached(inUse func(netip.Addr) bool) (opened bool, err error) {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	incarnation, before := s.incarnation, s.families
	s.mu.Unlock()
	next := slices.Clone(before)
	for i := range next {
		f := &next[i]
		if !slices.Contains(f.states[:], group.Closed) {
			continue
		}
		var used [2]bool
		for j, a := range f.addresses {
			used[j] = inUse(a)
		}
		f.states.AllReached(used)
		opened = opened || slices.Contains(f.states[:], group.Open) &&
			!slices.Contains(before[i].states[:], group.Open)
	}
	if slices.Equal(next, before) {
		return false, nil
	}
	if err := s.save(incarnation, next); err != nil {
		return false, fmt.Errorf("group.stateDir: the state of source addresses cannot be saved: %w", err)
	}
	s.mu.Lock()
	s.families = next
	s.mu.Unlock()
	return opened, nil
}
