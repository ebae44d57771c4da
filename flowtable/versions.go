package flowtable

import "fmt"

// headVersion is the number of this program's layout. It changes with each change of the head, of
// records or of the numbers of states (TestLayoutHasAVersion): 2: bound and owner are a word each;
// 3: states renumbered; that is the first one of a release.
const headVersion = 3

// readerOf returns how a record's first word of a version's table is read, or nil if this program
// does not know the version. Flows of a known version are moved into a table of this one, as those
// of another size are. A change of the layout whose difference is in that word has its case here;
// one of another field has to read that in mover.flow, too.
func readerOf(version uint32) func(meta) meta {
	switch version {
	case headVersion:
		return func(m meta) meta { return m }
	}
	return nil
}

// wrongVersion says what a table has that this program cannot read.
func wrongVersion(version uint32) string {
	return fmt.Sprintf("version %d of the table, this program has %d", version, headVersion)
}
