package devices

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/host/nic/frames"
	"sluice.dev/sluice/test/bed/machine"
)

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name    string
		queues  []int // of the devices
		wanted  config.Queues
		workers int
		want    int
		problem string
	}{
		{"one per queue", []int{4}, 0, 0, 4, ""},
		{"the narrowest device decides", []int{4, 2}, 0, 0, 2, ""},
		{"fewer queues", []int{8}, 2, 0, 2, ""},
		{"more queues than there are", []int{2}, 4, 0, 0, "queues is 4, but it has 2"},
		{"fewer workers", []int{8}, 0, 3, 3, ""},
		{"more workers than queues", []int{2}, 0, 3, 0, "workers is 3, but an interface has only 2 queues"},
		{"as many as flows can have", []int{1024}, 0, MostWorkers, MostWorkers, ""},
		{"more than flows can have", []int{1024}, 0, 0, 0, "set workers to at most"},
		{"more sockets than poll takes", []int{1024}, 0, 2, 0, "use more workers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conf := config.Default()
			conf.Workers = c.workers
			var devices []Device
			for _, n := range c.queues {
				conf.Interfaces = append(conf.Interfaces, config.Interface{Name: "nic0", Queues: c.wanted})
				devices = append(devices, Device{Name: "nic0", Queues: n})
			}
			got, err := NewPlan(devices, conf)
			if got.Workers != c.want || (err == nil) != (c.problem == "") ||
				err != nil && !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%d workers, %v; want %d, %q", got.Workers, err, c.want, c.problem)
			}
		})
	}
}

// TestRefusedForTheMTU: an interface that driver or configuration rule out is rejected by name,
// before anything is changed.
func TestRefusedForTheMTU(t *testing.T) {
	for _, tc := range []struct {
		name        string
		d           Device
		f           config.Interface
		about, want string
	}{
		{"zero-copy", Device{Name: "left", Driver: "igb", MTU: 9000},
			config.Interface{ZeroCopy: config.ZeroCopyRequire},
			"zero-copy", "interface left: zeroCopy is require, but MTU 9000 takes 3 frames of 4096 bytes a packet"},
		{"native", Device{Name: "left", Driver: "igb", MTU: 9000,
			generic: "driver igb gives no packets in several buffers"}, config.Interface{Mode: config.ModeNative},
			"mode", "interface left: mode is native, but driver igb gives no packets in several buffers: set mode to " +
				"auto or generic, or: ip link set left mtu 3046"},
		{"generic is fine", Device{Name: "left", Driver: "igb", MTU: 9000,
			generic: "driver igb gives no packets in several buffers"}, config.Interface{Mode: config.ModeGeneric}, "",
			""},
		{"native is fine", Device{Name: "left", Driver: "veth", MTU: 9000}, config.Interface{Mode: config.ModeNative},
			"", ""},
		{"generic, and so no zero-copy", Device{Name: "left", Driver: "igc", MTU: 2000,
			generic: "driver igc refuses a native XDP program"}, config.Interface{ZeroCopy: config.ZeroCopyRequire},
			"zero-copy",
			"interface left: zeroCopy is require, but driver igc refuses a native XDP program: set zeroCopy to auto, " +
				"or: ip link set left mtu 1500"},
		{"more than any packet", Device{Name: "left", Driver: "veth", MTU: 65259}, config.Interface{}, "mtu",
			"take at most 65258"},
		{"packets in pieces", Device{Name: "left", Driver: "igb", MTU: 3047},
			config.Interface{ZeroCopy: config.ZeroCopyRequire},
			"zero-copy",
			"interface left: zeroCopy is require, but in zero-copy driver igb delivers packets of up to 3046 bytes " +
				"whole into frames of 4096 bytes, and the MTU is 3047: ip link set left mtu 3046"},
	} {
		about, err := Check(tc.d, tc.f, frames.Choice{Size: frames.Large})
		if got := fmt.Sprint(err); about != tc.about || (tc.want == "") != (err == nil) ||
			!strings.Contains(got, tc.want) {
			t.Errorf("%s: %s: %v, want %s: %q", tc.name, about, err, tc.about, tc.want)
		}
	}
}

// TestOnlyAbsentIsAbsent: a device does not count as absent while the process is out of descriptors
// or memory.
func TestOnlyAbsentIsAbsent(t *testing.T) {
	if _, err := Read("none"); !Absent(err) {
		t.Errorf("no such interface: %v", err)
	}
	for _, errno := range machine.Shortages {
		machine.Short(t, errno, func() {
			_, err := Read("lo")
			_, blocked := Blocked(1, "lo")
			for _, err := range []error{err, blocked} {
				if Absent(err) || !errors.Is(err, errno) {
					t.Errorf("%v, want %v", err, errno)
				}
			}
		})
	}
}

// TestPlaces: every worker has a socket on every port, and each of its links is the place of one.
func TestPlaces(t *testing.T) {
	for _, host := range []bool{false, true} {
		c := config.Default()
		c.Interfaces = []config.Interface{{Name: "left"}, {Name: "right"}}
		if !host {
			c.HostLink.Addresses = nil
		}
		p, err := NewPlan([]Device{{Name: "left", Queues: 5}, {Name: "right", Queues: 2}}, c)
		want := [][]Place{
			{{0, 0, 0}, {1, 0, 1}, {0, 1, 2}, {1, 1, 3}, {0, 2, 4}}, // left
			{{0, 3, 0}, {1, 2, 1}}, // right
			{{0, 4, 0}, {1, 3, 1}}, // the host link
		}
		links := [2]int{5, 4}
		if !host {
			want, links = want[:2], [2]int{4, 3}
		}
		if err != nil || !reflect.DeepEqual(p.Places, want) || p.Links(0) != links[0] || p.Links(1) != links[1] {
			t.Errorf("host link %v: %+v with %d and %d links, %v; want %+v with %d",
				host, p.Places, p.Links(0), p.Links(1), err, want, links)
		}
		if p.First(0, 1) != 0 || p.First(1, 0) != 3 || p.First(1, 1) != 2 {
			t.Errorf("host link %v: first places %d, %d, %d", host, p.First(0, 1), p.First(1, 0), p.First(1, 1))
		}
	}
}
