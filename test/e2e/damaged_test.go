//go:build root

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// TestFlowTableDamaged: bits of the flow table flip while no daemon runs. What is damaged is not
// taken over: a connection goes on to its own backend or breaks, and none reaches another.
func TestFlowTableDamaged(t *testing.T) {
	const open, flips = 500, 200
	random := moments(t)
	l := newLab(t, labConfig{Config: topo.Config{Backends: 3, Queues: 2}, small: true})
	flows := l.establishedFor(open, machine.Slower(15*time.Second), 2*time.Minute)
	if err := l.gate.Kill(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(l.gate.StateDir(), "flows")
	memory, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var used []int // bytes behind the head that are not zero: records and keys of flows
	for i := 4096; i < len(memory); i++ {
		if memory[i] != 0 {
			used = append(used, i)
		}
	}
	for range flips {
		i := used[random.IntN(len(used))]
		memory[i] ^= 1 << random.IntN(8)
		if _, err := file.WriteAt(memory[i:i+1], int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.gate.Start(l.ctx); err != nil {
		t.Fatalf("%v\n%s", err, l.gate.Log())
	}
	l.answeredAgain(flows)
	broken := flows.Broken()
	r := flows.Stop()
	wrong := maps.Clone(r.Errors)
	maps.DeleteFunc(wrong, func(kind string, _ int64) bool { return !strings.Contains(kind, "wrong answer") })
	taken := regexp.MustCompile(`flow table taken over.*`).FindString(l.gate.Log())
	t.Logf("%d bits of %d bytes flipped: %d of %d connections broken; %s", flips, len(used), broken, open, taken)
	if len(wrong) > 0 {
		t.Errorf("connections met another backend: %v", wrong)
	}
	if taken == "" || strings.Contains(taken, "torn=0") {
		t.Error("nothing damaged was noticed: the test damages nothing")
	}
	if broken > flips {
		t.Errorf("%d connections broken by %d bits: %v", broken, flips, fmt.Sprint(r.Errors))
	}
	l.wantServed("with what is left of the table")
}
