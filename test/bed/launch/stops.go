package launch

import (
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Stop is a place in the source of a program at which a goroutine can be stopped: behind a text
// that a file of the tree has once.
type Stop struct{ Name, File, After string }

// Stops stops goroutines of one program: goroutines that reach a Stop, and every loop with a
// heartbeat, by the heartbeat's name. Program and test share a page of memory, so that a program
// without a free descriptor can be stopped, too.
type Stops struct {
	program string
	page    []byte
}

// The first word of the page. The name of the place that is meant follows: its length, 4 bytes, and
// its text, which may have the wildcards of path.Match.
const (
	goesOn uint32 = iota
	stops         // the next goroutine that comes to the place
	stands
)

// Suffixes of files beside the program.
const (
	pageSuffix  = ".stops" // the page
	loopsSuffix = ".loops" // names of heartbeats, one a line
)

// stopPackage is the package that the program is built with.
const stopPackage = `// Package stoppoint stops goroutines.
package stoppoint

import (
	"encoding/binary"
	"os"
	"path"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

var program, page = start()

var word = (*uint32)(unsafe.Pointer(&page[0]))

func start() (string, []byte) {
	program, err := os.Executable()
	if err != nil {
		panic(err)
	}
	f, err := os.OpenFile(program+"` + pageSuffix + `", os.O_RDWR, 0)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	p, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	return program, p
}

// At does not return while goroutines are stopped at a place of this name.
func At(name string) {
	for atomic.LoadUint32(word) != 0 && means(name) {
		atomic.CompareAndSwapUint32(word, 1, 2)
		time.Sleep(10 * time.Millisecond)
	}
}

func means(name string) bool {
	n := binary.NativeEndian.Uint32(page[4:])
	is, _ := path.Match(string(page[8:8+n]), name)
	return is
}

// Has records the name of a heartbeat.
func Has(name string) {
	f, err := os.OpenFile(program+"` + loopsSuffix + `", os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		f.WriteString(name + "\n")
		f.Close()
	}
}
`

// heartbeats is where a program has the beats of all its loops.
const heartbeats = "internal/heartbeat/heartbeat.go"

// BuildWithStops builds a command of the tree with places at which goroutines can be stopped.
func BuildWithStops(dir, command string, list []Stop) (*Stops, error) {
	changes := []Change{{File: "internal/stoppoint/stoppoint.go", To: stopPackage}}
	at := func(file, after, call string) {
		changes = append(changes, Change{file, after, after + "\nstoppoint." + call + "\n"},
			Change{file, "\nimport (\n", "\nimport (\n\"sluice.dev/sluice/internal/stoppoint\"\n"})
	}
	at(heartbeats, "b.last.Store(int64(time.Since(b.epoch)))", "At(b.name)")
	const made = "b := &Beat{name: name,"
	changes = append(changes, Change{heartbeats, made, "stoppoint.Has(name)\n" + made})
	for _, s := range list {
		at(s.File, s.After, fmt.Sprintf("At(%q)", s.Name))
	}
	path, err := buildChanged(dir, command+"-stops", command, changes)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path+pageSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const size = 4096
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	page, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return &Stops{program: path, page: page}, err
}

// Program is the path of the program.
func (s *Stops) Program() string { return s.program }

func (s *Stops) word() *uint32 { return (*uint32)(unsafe.Pointer(&s.page[0])) }

// Stop stops every goroutine that comes to a place or beats with the name, until Go. The name may
// have the wildcards of path.Match.
func (s *Stops) Stop(name string) {
	binary.NativeEndian.PutUint32(s.page[4:], uint32(copy(s.page[8:], name)))
	atomic.StoreUint32(s.word(), stops)
}

// Stands reports whether a goroutine has stopped.
func (s *Stops) Stands() bool { return atomic.LoadUint32(s.word()) == stands }

// Go lets all go on, which they do within 10 ms.
func (s *Stops) Go() { atomic.StoreUint32(s.word(), goesOn) }

// Loops lists the names of the heartbeats that the program has had.
func (s *Stops) Loops() ([]string, error) {
	text, err := os.ReadFile(s.program + loopsSuffix)
	return strings.Split(strings.TrimSpace(string(text)), "\n"), err
}
