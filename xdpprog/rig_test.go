//go:build root

package xdpprog

import (
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// rig is a Steering without interfaces and an instance of each program.
type rig struct {
	*Steering
	t                       *testing.T
	steer, hostLink, egress *ebpf.Program
}

func newRig(t *testing.T, settings Settings, rules Rules) *rig {
	t.Helper()
	needRoot(t)
	s, err := Load(Config{MaxFrontends: 64, MaxSources: 64, MaxAddrs: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(true); err != nil {
			t.Error(err)
		}
	})
	if err := s.SetSettings(settings); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reconcile(rules); err != nil {
		t.Fatal(err)
	}
	b := &rig{Steering: s, t: t}
	for name, p := range map[string]**ebpf.Program{
		steerProgSteer: &b.steer, steerProgHostLink: &b.hostLink, steerProgEgress: &b.egress,
	} {
		c, err := s.instance(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		*p = c.Programs[name]
	}
	return b
}

// beat sets a heartbeat of the given age; a negative age means no heartbeat.
func (b *rig) beat(age time.Duration) {
	b.t.Helper()
	var nanos uint64
	if age >= 0 {
		nanos = uint64(bootNanos(b.t) - int64(age))
	}
	if err := b.Heartbeat(nanos); err != nil {
		b.t.Fatal(err)
	}
}

func bootNanos(t *testing.T) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano()
}

const (
	xdpDrop, xdpPass, xdpRedirect = 1, 2, 4
	tcxRedirect, tcxNext, tcxDrop = 7, 0xffffffff, 2
)

// verdict runs steer and egress. The test run has no socket, so with a young heartbeat a packet
// that steer takes is dropped.
func (b *rig) verdict(t *testing.T, frame []byte) (v int) {
	t.Helper()
	switch got := run(t, b.steer, frame, nil); got {
	case xdpDrop:
		v |= steers
	case xdpPass:
	default:
		t.Fatalf("steer returned action %d", got)
	}
	return v | b.caught(t, frame)
}

// wants is verdict by the counters: a packet that steer takes is counted as missed, even if it
// passes because it may be the node's.
func (b *rig) wants(t *testing.T, frame []byte) (v int) {
	t.Helper()
	before := b.missed(t)
	run(t, b.steer, frame, nil)
	if b.missed(t) > before {
		v |= steers
	}
	return v | b.caught(t, frame)
}

// caught returns egress's part of a verdict.
func (b *rig) caught(t *testing.T, frame []byte) int {
	t.Helper()
	// The kernel's test run of egress needs at least an IP header.
	if frame[12] == 0x08 && len(frame) < 14+20 || frame[12] == 0x86 && len(frame) < 14+40 {
		return 0
	}
	switch got := b.runEgress(t, frame, skb{}); got {
	case tcxRedirect:
		return redirects
	case tcxNext:
	default:
		t.Fatalf("egress returned action %d", got)
	}
	return 0
}

func (b *rig) missed(t *testing.T) uint64 {
	t.Helper()
	c, err := b.Counters()
	if err != nil {
		t.Fatal(err)
	}
	return c.MissedDropped + c.MissedPassed
}

// skb has the fields of struct __sk_buff that a test run may set.
type skb struct{ ingress, device uint32 }

func (b *rig) runEgress(t *testing.T, frame []byte, s skb) uint32 {
	t.Helper()
	var ctx [48]uint32 // 192 bytes: up to tstamp_type of struct __sk_buff
	ctx[9], ctx[10] = s.ingress, s.device
	return run(t, b.egress, frame, ctx)
}

func run(t *testing.T, p *ebpf.Program, frame []byte, ctx any) uint32 {
	t.Helper()
	o := &ebpf.RunOptions{Data: frame, Context: ctx, Repeat: 1}
	ret, err := p.Run(o)
	if err != nil {
		t.Fatalf("%s with %d bytes: %v", strings.TrimSpace(p.String()), len(frame), err)
	}
	return ret
}
