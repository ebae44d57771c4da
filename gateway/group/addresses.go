package group

// AddressState is the state of a source address: new flows get ports of an Open one only.
type AddressState uint8

const (
	// Spare: no member has a record of a flow at the address.
	Spare AddressState = iota
	// Open: new flows get its ports, except ports that are in use or held.
	Open
	// Closed: this gateway does not know all flows at the address that members have.
	Closed
)

// Addresses are the states of an owner's two source addresses of a family. The caller writes them
// to the disk before it makes a flow by them.
type Addresses [2]AddressState

// MemoryLost closes the open address, and opens the spare one, if there is one.
func (a *Addresses) MemoryLost() {
	opened := false
	for i := range a {
		switch {
		case a[i] == Open:
			a[i] = Closed
		case a[i] == Spare && !opened:
			a[i], opened = Open, true
		}
	}
}

// AllReached is called when the owner has taken back its flows from all members. It opens an
// address if none is open. A closed address becomes a spare only if no port of it is in use or
// held: the next loss of memory opens it, and the gateway then no longer knows which ports are in
// use or held.
func (a *Addresses) AllReached(inUse [2]bool) {
	open := a[0] == Open || a[1] == Open
	for i := range a {
		switch {
		case a[i] != Closed:
		case !open:
			a[i], open = Open, true
		case !inUse[i]:
			a[i] = Spare
		}
	}
}
