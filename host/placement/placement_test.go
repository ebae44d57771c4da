package placement

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/host/nic/irq"
)

// TestChoose: where workers go, by machine and by where packets arrive.
func TestChoose(t *testing.T) {
	two, eight := []int{0, 1}, []int{0, 1, 2, 3, 4, 5, 6, 7}
	threads := map[int]int{0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 1, 6: 2, 7: 3} // four cores of two threads
	for _, c := range []struct {
		name    string
		m       Machine
		workers int
		arrive  []int
		want    []int
		why     string
	}{
		{"nothing known", Machine{Allowed: two}, 2, nil, []int{0, 1}, "not known yet"},
		{"no CPUs known", Machine{}, 2, []int{0}, []int{-1, -1}, "may be used"},
		{"one CPU", Machine{Allowed: []int{3}}, 2, []int{3}, []int{3, 3}, "spread"},
		{"one of two", Machine{Allowed: two}, 2, []int{0}, []int{1, 1}, "apart: packets arrive on CPU 0"},
		{"the other of two", Machine{Allowed: two}, 2, []int{1}, []int{0, 0}, "apart"},
		{"both", Machine{Allowed: two}, 2, two, []int{0, 1}, "spread: packets arrive on CPU 0, 1"},
		{"both, one worker", Machine{Allowed: two}, 1, []int{1, 0}, []int{1}, "spread: packets arrive on CPU 0, 1"},
		{"most, fewer on one", Machine{Allowed: eight}, 4, []int{4, 2, 0, 1, 3}, []int{5, 6, 7, 4}, "spread"},
		{"a quarter", Machine{Allowed: eight}, 4, []int{0, 1}, []int{2, 3, 4, 5}, "apart"},
		{"more workers than free CPUs", Machine{Allowed: eight}, 8, []int{0, 1, 2, 3}, []int{4, 5, 6, 7, 4, 5, 6, 7},
			"apart"},
		{"most", Machine{Allowed: eight}, 4, []int{0, 1, 2, 3, 4}, []int{5, 6, 7, 0}, "spread"},
		{"a CPU of somebody else", Machine{Allowed: two}, 2, []int{7}, []int{0, 1}, "apart"},
		{"isolated", Machine{Allowed: []int{0, 1}, Isolated: []int{2, 3}}, 3, []int{0}, []int{2, 3, 2}, "apart"},
		{"isolated, and packets there", Machine{Allowed: two, Isolated: []int{2, 3}}, 2, []int{2}, []int{3, 3},
			"apart"},
		{"near", Machine{Allowed: eight, Near: []int{4, 5, 6, 7}}, 5, []int{4, 5}, []int{6, 7, 0, 1, 2}, "apart"},
		{"cores", Machine{Allowed: eight, Core: threads}, 6, []int{0}, []int{1, 2, 3, 4, 5, 6}, "apart"},
		{"cores, two arrive", Machine{Allowed: eight, Core: threads}, 3, []int{0, 1}, []int{2, 3, 4}, "apart"},
		{"packets arrive on the other thread, which is not ours", Machine{Allowed: []int{4, 5}, Core: threads}, 1,
			[]int{0}, []int{5}, "apart"},
		{"near second threads before far cores", Machine{Allowed: eight, Near: []int{0, 1, 4, 5}, Core: threads}, 4,
			[]int{0, 1}, []int{4, 5, 2, 3}, "apart"},
	} {
		p := Choose(&c.m, c.workers, c.arrive, true)
		if !slices.Equal(p.CPUs, c.want) || !strings.Contains(p.Why, c.why) {
			t.Errorf("%s: %v, %q; want %v, and %q in it", c.name, p.CPUs, p.Why, c.want, c.why)
		}
	}
	if p := Choose(&Machine{Allowed: two}, 1, []int{0}, false); !strings.Contains(p.Why, "interrupts") {
		t.Errorf("by interrupts: %q", p.Why)
	}
	if p := Polling(&Machine{Allowed: two}, 3); !slices.Equal(p.CPUs, []int{0, 1, 0}) {
		t.Errorf("polling: %v", p.CPUs)
	}
	if p := Polling(&Machine{}, 2); !slices.Equal(p.CPUs, []int{-1, -1}) {
		t.Errorf("polling on CPUs that are not known: %v", p.CPUs)
	}
	if p := Fixed([]int{5, 3}, 3); !slices.Equal(p.CPUs, []int{5, 3, 5}) {
		t.Errorf("fixed: %v", p.CPUs)
	}
}

// TestArrivals: the CPUs where packets arrive are known after enough equal looks, and stay known
// while few packets arrive.
func TestArrivals(t *testing.T) {
	var a Arrivals
	counts := make([]uint64, 4)
	look := func(packets ...uint64) bool {
		for cpu, n := range packets {
			counts[cpu] += n
		}
		return a.Look(counts)
	}
	expect := func(what string, changed, want bool, cpus ...int) {
		t.Helper()
		if changed != want || !slices.Equal(a.CPUs(), cpus) {
			t.Fatalf("%s: changed %v, CPUs %v; want %v, %v", what, changed, a.CPUs(), want, cpus)
		}
	}
	if a.Look(counts); a.Next() != Every {
		t.Errorf("%v until the second look", a.Next())
	}
	if a.Look(counts); a.Next() != EveryIdle {
		t.Errorf("%v until the next look without packets", a.Next())
	}
	expect("first", look(1000), false)
	if a.Next() != Every {
		t.Errorf("%v until the next look with packets", a.Next())
	}
	expect("two", look(1000, 50), false)
	expect("three", look(1000, 50), true, 0)
	expect("four", look(1000), false, 0)
	for range alike * patience {
		expect("few", look(0, 1), false, 0)
	}
	for range alike - 1 {
		expect("elsewhere", look(0, 0, 1000, 1000), false, 0)
	}
	expect("a look that says otherwise", look(1000), false, 0)
	for range alike - 1 {
		expect("elsewhere again", look(0, 0, 1000, 1000), false, 0)
	}
	expect("elsewhere, enough", look(0, 0, 1000, 1000), true, 2, 3)
	for range alike - 1 {
		expect("a little at a time", look(fewest/2), false, 2, 3)
		expect("a little at a time", look(fewest/2), false, 2, 3)
	}
	expect("a little at a time, enough", look(fewest/2), false, 2, 3)
	expect("a little at a time, enough", look(fewest/2), true, 0)
	expect("a tenth counts", look(900, 0, 100), false, 0)
	expect("a tenth counts", look(900, 0, 100), false, 0)
	expect("a tenth counts", look(900, 0, 100), true, 0, 2)
	if got := a.ByPackets(nil); !slices.Equal(got, []int{2, 0}) {
		t.Errorf("by packets: %v", got)
	}
	if got := a.ByPackets([]int{0}); !slices.Equal(got, []int{2, 0}) {
		t.Errorf("by packets, with the worker where many more are: %v", got)
	}
	for range 2 * alike {
		expect("a twentieth still counts", look(950, 0, 50), false, 0, 2)
		expect("less than a tenth does not yet", look(850, 60, 90), false, 0, 2)
	}
	for range alike - 1 {
		expect("less than a twentieth", look(960, 0, 40), false, 0, 2)
	}
	expect("less than a twentieth, enough", look(960, 0, 40), true, 0)
	for range alike - 1 {
		expect("about as many on two", look(500, 0, 450), false, 0)
	}
	expect("about as many on two, enough", look(500, 0, 450), true, 0, 2)
	if got := a.ByPackets([]int{0}); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("by packets, with the worker where about as many are: %v", got)
	}
	expect("another number of CPUs", a.Look(make([]uint64, 2)), false, 0, 2)
}

// TestRead reads a machine from files.
func TestRead(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"sys/devices/system/cpu/isolated":                           "2-3\n",
		"sys/devices/system/cpu/cpu0/topology/thread_siblings_list": "0,2\n",
		"sys/devices/system/cpu/cpu1/topology/thread_siblings_list": "1,5\n",
		"sys/devices/system/cpu/cpu2/topology/thread_siblings_list": "0,2\n",
		"sys/devices/system/node/node1/cpulist":                     "2-3\n",
		"sys/class/net/eth0/device/numa_node":                       "1\n",
		"sys/class/net/eth1/device/numa_node":                       "-1\n",
		"sys/class/net/eth0/device/msi_irqs/40":                     "msix\n",
		"sys/class/net/eth0/device/msi_irqs/41":                     "msix\n",
		"proc/irq/40/effective_affinity_list":                       "1\n",
		"proc/irq/40/eth0/x":                                        "",
		"proc/irq/41/effective_affinity_list":                       "0\n",
		"proc/irq/41/eth0-TxRx-0/x":                                 "",
	} {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := Read(irq.Roots{Sys: filepath.Join(root, "sys"), Proc: filepath.Join(root, "proc")},
		[]string{"eth0", "eth1", "eth9"}, []int{0, 1, 2})
	want := Machine{Allowed: []int{0, 1, 2}, Isolated: []int{2}, Interrupts: []int{0}, Near: []int{2, 3},
		Core: map[int]int{0: 0, 2: 0, 1: 1, 5: 1}}
	if mayUse(3) {
		want.Isolated = append(want.Isolated, 3)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if mayUse(1 << 13) {
		t.Error("a CPU that is not there may be used")
	}
	nothing := Read(irq.Roots{Sys: root, Proc: root}, []string{"eth0"}, []int{0})
	if !reflect.DeepEqual(nothing, Machine{Allowed: []int{0}, Core: map[int]int{}}) {
		t.Errorf("of nothing: %+v", nothing)
	}
}
