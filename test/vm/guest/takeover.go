package guest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sluice.dev/sluice/test/bed/topo"
)

// takeOvers starts the next daemon again and again under held connections and numbered datagrams
// of both families. Each takes over from the one before: NICs stay in their modes, and no datagram
// is lost or comes twice.
func (l *lab) takeOvers() (string, error) {
	flows, err := l.hold()
	if err != nil {
		return "", err
	}
	defer flows.Stop()
	var loads []*topo.Numbered
	client := l.Clients[0]
	for vip, from := range map[string]netip.Addr{vip4: client.Addr4(), vip6: client.Addr6()} {
		n, err := client.Number(topo.NumberedLoad{From: from, To: at(vip, numberPort), UnderWay: window,
			Patience: l.patience(5 * time.Second)})
		if err != nil {
			return "", err
		}
		loads = append(loads, n)
	}
	var gaps []time.Duration
	for n := range l.TakeOvers {
		gap, err := l.takeOver(loads)
		if err == nil {
			err = l.allAnswered(flows)
		}
		if err != nil {
			return "", fmt.Errorf("hand-over %d: %w", n+1, err)
		}
		gaps = append(gaps, gap)
		fmt.Fprintf(l.Log, "hand-over %d: packets waited %v\n", n+1, gap)
	}
	slices.Sort(gaps)
	sent, lost, repeated := uint64(0), uint64(0), uint64(0)
	for _, n := range loads {
		s, missing, again, err := n.Finish()
		if err != nil {
			return "", err
		}
		sent, lost, repeated = sent+s, lost+missing, repeated+again
	}
	detail := fmt.Sprintf("%d hand-overs under %d connections: %d datagrams each way, %d lost, %d repeated, packets "+
		"waited %v (median), %v (most)", l.TakeOvers, heldFlows, sent, lost, repeated, gaps[len(gaps)/2],
		gaps[len(gaps)-1])
	if lost+repeated > 0 {
		return "", errors.New(detail)
	}
	return detail, nil
}

// takeOver starts the next daemon, and returns how long packets waited.
func (l *lab) takeOver(loads []*topo.Numbered) (time.Duration, error) {
	if err := l.gate.LaunchNext(); err != nil {
		return 0, err
	}
	if err := l.gate.TakenOver(l.ctx); err != nil {
		return 0, err
	}
	v, err := l.gate.Applied(l.ctx)
	if err != nil {
		return 0, err
	}
	if v.TakeOver == nil || v.TakeOver.At.IsZero() {
		return 0, fmt.Errorf("it did not take over: %+v", v.TakeOver)
	}
	for i := range v.Interfaces {
		nic := &v.Interfaces[i]
		mode, why, err := modeOf(nic)
		if err != nil {
			return 0, err
		}
		want, ours := map[string]Mode{l.interfaces()[0]: l.Left, l.interfaces()[1]: l.Right}[nic.Name]
		if ours && mode != want {
			return 0, fmt.Errorf("%s is in %s mode, was in %s: %s", nic.Name, mode, want, why)
		}
	}
	for _, n := range loads {
		if err := l.goesOn(n); err != nil {
			return 0, err
		}
	}
	return time.Duration(v.TakeOver.GapMicros) * time.Microsecond, nil
}

// goesOn waits until some more datagrams were answered.
func (l *lab) goesOn(n *topo.Numbered) error {
	const more = 4 * window
	want := n.Answered() + more
	return topo.Until(l.ctx, l.patience(10*time.Second), 10*time.Millisecond, func(context.Context) error {
		if n.Answered() < want {
			return fmt.Errorf("%d of %d datagrams were answered, and no more come", n.Answered(), n.Sent())
		}
		return nil
	})
}
