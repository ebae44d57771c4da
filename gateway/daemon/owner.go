package daemon

import (
	"errors"
	"os"

	"sluice.dev/sluice/gateway/owners"
)

// identity is that of this process in hand-overs (handover.Hello): its pod's UID, or empty.
func identity() string { return os.Getenv("POD_UID") }

// follow notes that this process has what the pods before had, which get nothing back from it, and
// saves it for a next process that is given nothing, as after a crash. unread is why the pods
// before are not known. It is called before anything is given.
func (d *Daemon) follow(before []string, unread error) {
	id := identity()
	if id == "" {
		return
	}
	list := owners.Add(before, id)
	d.giving.predecessors = list[:len(list)-1]
	if err := errors.Join(unread, owners.Save(d.fixed.StateDir, list)); err != nil {
		d.log.Warn("the pods before this one may not be known, and one of them may take everything back: delete it "+
			"if a rolling update does not go on", "error", err)
	}
}

// followLast is follow for a process that has started after the one before had ended.
func (d *Daemon) followLast() {
	before, err := owners.Load(d.fixed.StateDir)
	d.follow(before, err)
}
