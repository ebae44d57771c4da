package roster

import (
	"cmp"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/internal/statefile"
)

// FileName is the name of the file with the lists, in group.stateDir.
const FileName = "group-members.json"

// version must change when the meaning of a field changes.
const version = 1

// Lists are the gateways of a group, as one of them knows them.
type Lists struct {
	// Members are the members in force.
	Members []config.GroupMember `json:"members"`
	// UID is the one of this gateway's Node; empty: it is not known.
	UID string `json:"uid,omitempty"`
	// Removed are the removed gateways whose flows this one may have.
	Removed []config.GroupMember `json:"removed,omitempty"`
	// Former are source addresses that gateways had before, by gateway: flows here may have them.
	// No member has one.
	Former []Former `json:"former,omitempty"`
}

// Former are source addresses that a gateway had before.
type Former struct {
	Name    string       `json:"name"`
	Sources []netip.Addr `json:"sources"`
}

// Equal reports whether two Formers are the same.
func (f Former) Equal(o Former) bool { return f.Name == o.Name && slices.Equal(f.Sources, o.Sources) }

// Next returns the lists after a change of members.
func (l *Lists) Next(members []config.GroupMember) Lists {
	n := Lists{Members: members, UID: l.UID, Former: slices.Clone(l.Former)}
	for _, m := range slices.Concat(l.Removed, l.Members) {
		if !slices.ContainsFunc(members, func(o config.GroupMember) bool { return o.Name == m.Name }) {
			n.Removed = append(n.Removed, m)
			continue
		}
		n.Former = append(n.Former, Former{m.Name, m.Sources})
	}
	slices.SortFunc(n.Removed, func(a, b config.GroupMember) int { return cmp.Compare(a.Name, b.Name) })
	n.Former = n.FormerExcept(func(a netip.Addr) bool {
		return slices.ContainsFunc(members, func(o config.GroupMember) bool { return slices.Contains(o.Sources, a) })
	})
	return n
}

// FormerExcept returns Former without addresses for which gone is true. Each address is there once,
// of the gateway that had it last.
func (l *Lists) FormerExcept(gone func(netip.Addr) bool) (list []Former) {
	seen := map[netip.Addr]bool{}
	for _, f := range slices.Backward(l.Former) {
		f.Sources = slices.DeleteFunc(slices.Clone(f.Sources), func(a netip.Addr) bool {
			again := seen[a]
			seen[a] = true
			return again || gone(a)
		})
		if len(f.Sources) > 0 {
			list = append(list, f)
		}
	}
	slices.Reverse(list)
	return list
}

// File is the file with the lists: a gateway that starts without the API server goes on with the
// members, and each one that starts with the flows of removed ones.
type File string

type content struct {
	statefile.Version
	Lists
}

// In returns the File of a directory on a disk.
func In(dir string) File { return File(filepath.Join(dir, FileName)) }

// Load returns the lists; empty ones if there is no file.
func (f File) Load() (Lists, error) {
	var c content
	err := statefile.Load(string(f), version, &c)
	return c.Lists, err
}

// Save returns when the lists are on the disk. It makes the directory if it is missing. A member
// must not get records before they are there: a later process must know the members that may have
// them. Nor must a gateway be removed before: a later process must know whose flows it has.
func (f File) Save(l Lists) error {
	if err := os.MkdirAll(filepath.Dir(string(f)), 0o700); err != nil {
		return err
	}
	return statefile.Sync(string(f), &content{statefile.Version{Version: version}, l})
}
