package flowtable

import (
	"fmt"

	"sluice.dev/sluice/flowtable/conn"
)

// headVersion is the version of this program's layout. Each change of the head, of records or of
// the numbers of states increments it (TestLayoutHasAVersion). Version 2: bound and owner are a
// word each. Version 3: states renumbered; the first release has it. MetaProxied did not change
// it: a program that does not know the bit takes the flow's protocol for one that it does not
// know. conn.Meta.Held did not change it: such a program drops the record as a pending one.
// conn.Meta.Timed did not change it: packets of such a flow do not pass the plain path of a program
// that does not know the note. The hash in NodeMark did not change it: if no node
// has a flow's mark, the flow gets the node that the scheduler's hash selects.
const headVersion = 3

// readerOf returns a function that converts meta, the first word of a record, from a table of the
// given version to this program's, or nil if this program does not know the version. Flows of a
// known version are moved into a table of this version, as flows of a table of another size are. A
// change of meta's layout adds a case here; a change of another field must also be converted in
// mover.flow.
func readerOf(version uint32) func(conn.Meta) conn.Meta {
	switch version {
	case headVersion:
		return func(m conn.Meta) conn.Meta { return m }
	}
	return nil
}

// wrongVersion returns the message about a table whose version this program cannot read.
func wrongVersion(version uint32) string {
	return fmt.Sprintf("version %d of the table, this program has %d", version, headVersion)
}
