//go:build root

package xsk

import (
	"context"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/fastpath/xsk/xsktest"
)

// TestOptionsAreSet reads back from the kernel the options that a socket reports. The kernel does
// not report the budgets; TestBurst counts calls instead.
func TestOptionsAreSet(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 1024)
	c := smallRings
	c.BusyPoll, c.BusyPollBudget, c.TxBudget = 30*time.Microsecond, 17, 48
	s := r.open(w, c)
	for name, o := range map[string]struct{ no, want int }{
		"SO_PREFER_BUSY_POLL": {unix.SO_PREFER_BUSY_POLL, 1},
		"SO_BUSY_POLL":        {unix.SO_BUSY_POLL, 30},
	} {
		if got, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, o.no); err != nil || got != o.want {
			t.Errorf("%s is %d, %v; want %d", name, got, err, o.want)
		}
	}
	o := s.Options()
	if o.BusyPoll != 30*time.Microsecond || o.BusyPollBudget != 17 || o.SendBuffer < 64*2048 {
		t.Errorf("the socket says %+v", o)
	}
	if !strings.Contains(strings.Join(o.Refused, "\n"), "busy polling has no effect yet") {
		t.Errorf("no packet has arrived, but Refused does not report that the NAPI is unknown: %q", o.Refused)
	}
}

// TestBusyPollOnVeth: packets arrive whether or not the device can be polled, and Options reports
// which. If a later kernel can poll veth, Refused must be empty.
func TestBusyPollOnVeth(t *testing.T) {
	xsktest.EnterNamespace(t)
	w := xsktest.NewWire(t, "sl0", "sl0p")
	r := newRig(t, 1024)
	c := smallRings
	c.BusyPoll = 20 * time.Microsecond
	s := r.open(w, c)
	w.Send(t, 0, 10)
	got := 0
	eventually(t, "10 packets", func() {
		n := s.Receive(r.batch)
		got += n
		for _, d := range r.batch[:n] {
			r.pool.Put(d.Addr)
		}
		s.Flush()
		s.Refill(r.pool)
	}, func() bool { return got == 10 })
	if s.Counters().RxKicks == 0 {
		t.Error("Flush never polled the device")
	}
	id, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_INCOMING_NAPI_ID)
	must(t, err)
	if told := len(s.Options().Refused) > 0; told != (id == 0) {
		t.Errorf("NAPI %d, refused %q", id, s.Options().Refused)
	}
	t.Logf("NAPI %d: %q", id, s.Options().Refused)
}

// TestRefusedOptions: on a kernel without an option the socket works, and reports it in Refused.
func TestRefusedOptions(t *testing.T) {
	for _, test := range []struct {
		name   string
		option int
		errno  unix.Errno
		say    string
		check  func(Options) bool
	}{
		{"old kernel, budget", unix.XDP_MAX_TX_SKB_BUDGET, unix.ENOPROTOOPT,
			"a system call sends 32 packets, not 64: this kernel has no XDP_MAX_TX_SKB_BUDGET (Linux 6.17)",
			func(o Options) bool { return o.TxBudget == 32 && o.BusyPoll != 0 }},
		{"odd refusal, budget", unix.XDP_MAX_TX_SKB_BUDGET, unix.EACCES, "permission denied",
			func(o Options) bool { return o.TxBudget == 32 }},
		{"old kernel, prefer", unix.SO_PREFER_BUSY_POLL, unix.ENOPROTOOPT,
			"no busy polling: this kernel has no SO_PREFER_BUSY_POLL",
			func(o Options) bool { return o.BusyPoll == 0 && o.TxBudget == 64 }},
		{"no capability", unix.SO_BUSY_POLL_BUDGET, unix.EPERM,
			"no busy polling: SO_BUSY_POLL_BUDGET 64 needs CAP_NET_ADMIN",
			func(o Options) bool { return o.BusyPoll == 0 }},
	} {
		t.Run(test.name, func(t *testing.T) {
			xsktest.EnterNamespace(t)
			w := xsktest.NewWire(t, "sl0", "sl0p")
			r := newRig(t, 1024)
			c := smallRings
			c.BusyPoll, c.TxBudget = 20*time.Microsecond, 64
			c.set = func(fd, level, option, value int) error {
				if option == test.option {
					return test.errno
				}
				return unix.SetsockoptInt(fd, level, option, value)
			}
			s := r.open(w, c)
			o := s.Options()
			if !strings.Contains(strings.Join(o.Refused, "\n"), test.say) || !test.check(o) {
				t.Errorf("%+v; want %q", o, test.say)
			}
			if o.BusyPoll == 0 {
				if n, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_PREFER_BUSY_POLL); err != nil || n != 0 {
					t.Errorf("busy polling was given up, and SO_PREFER_BUSY_POLL is %d, %v", n, err)
				}
			}
			if n := r.generate(s, 0, 64); n != 64 {
				t.Fatalf("took %d of 64", n)
			}
			s.Flush()
			seen := map[uint64]int{}
			eventually(t, "64 packets", func() { w.Receive(t, seen); s.Complete(r.pool) },
				func() bool { return len(seen) == 64 && s.Frames() == int(smallRings.FillSize) })
		})
	}
}

func TestOptionsOutOfRange(t *testing.T) {
	xsktest.EnterNamespace(t)
	xsktest.NewWire(t, "sl0", "sl0p")
	umem, err := NewUMEM(UMEMConfig{Frames: 64, FrameSize: 2048})
	must(t, err)
	defer umem.Close()
	for name, change := range map[string]func(*Config){
		"budget below 32":       func(c *Config) { c.TxBudget = 31 },
		"budget above the ring": func(c *Config) { c.TxBudget = 65 },
		"half a microsecond":    func(c *Config) { c.BusyPoll = 500 },
		"negative poll":         func(c *Config) { c.BusyPoll = -time.Microsecond },
		"poll budget":           func(c *Config) { c.BusyPollBudget = 65536 },
	} {
		c := smallRings
		c.Interface, c.UMEM, c.TxSize, c.CompletionSize = "sl0", umem, 64, 64
		change(&c)
		if _, err := Open(context.Background(), c); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}
