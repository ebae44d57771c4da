//go:build root

package xdpprog

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// TestPrepared: interfaces use the programs that were loaded concurrently, each with its own maps.
// An unexpected interface gets a new program, and programs that no interface used are closed.
func TestPrepared(t *testing.T) {
	isolate(t)
	a, b := veth(t, "a", "b")
	before := descriptors(t)
	s := load(t, Config{Interfaces: 1, HostLink: true})
	if got := fmt.Sprint(s.preparedFor()); got != "[steer host_link egress]" {
		t.Errorf("prepared: %s", got)
	}
	first, err := s.Attach(a, "a", Auto)
	must(t, err)
	if got := fmt.Sprint(s.preparedFor()); got != "[host_link egress]" {
		t.Errorf("prepared after the first interface: %s", got)
	}
	second, err := s.Attach(b, "b", Auto)
	must(t, err)
	must(t, first.queues.Put(uint32(0), uint32(7)))
	var other uint32
	err = second.queues.Lookup(uint32(0), &other)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) || other != 0 {
		t.Errorf("the second interface serves %d queues, %v: it has the first one's map", other, err)
	}
	must(t, s.Close(true))
	if now := descriptors(t); now != before {
		t.Errorf("%d descriptors before, %d after", before, now)
	}
}

func (s *Steering) preparedFor() (programs []string) {
	for _, p := range s.prepared {
		programs = append(programs, p.program)
	}
	return programs
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}
