// Package spec is the input of a node's first process, from its parent.
package spec

// Node describes a node. It is written as JSON to the file that the first process is given.
type Node struct {
	// Name is its host name.
	Name string
	// Group is the name of its control group, the root of every hierarchy that it sees.
	Group string
	// PIDFile gets the number of its process 1, as the machine counts.
	PIDFile string
	// Tmpfs are directories that become empty file systems in memory, of SizeBytes at most each.
	Tmpfs     []string
	SizeBytes int64
	// Sysctls are files under /proc/sys that show a value of the node's own: writing to them
	// changes nothing.
	Sysctls map[string]string
	// Files are written after all is mounted, by their paths.
	Files map[string]string
	// Env is the environment of its programs.
	Env []string
	// Programs run until the first of them ends; then the node ends.
	Programs []Program
}

// Program is a program of a node.
type Program struct {
	Path string
	Args []string // without the name of the program
	Log  string   // the file that it writes to, on the machine
	// When names a file or socket in the node that must be there before the program starts; empty
	// for at once.
	When string
}
