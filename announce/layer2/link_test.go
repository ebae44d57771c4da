package layer2

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/announce"
	"sluice.dev/sluice/announce/layer2/frame"
	"sluice.dev/sluice/announce/layer2/hello"
	"sluice.dev/sluice/announce/layer2/members"
)

// linkOf returns a link of an interface that does not exist.
func linkOf(t *testing.T) *link {
	t.Helper()
	c := &Config{Log: slog.New(slog.DiscardHandler), Name: "n", Every: DefaultEvery, Silent: DefaultSilent,
		JoinTime: DefaultJoinTime, Return: DefaultReturn, Nonce: nonce}
	l, err := newLink("none", c, &incarnations{}, hello.Keys{make([]byte, 32)}, func() {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.carrier.close)
	return l
}

// The VIPs of an announcer that ends are kept for its next process only while its gateway's pulse
// reports that it forwards: a held gateway may be gone, as when the whole node shuts down.
func TestKeeps(t *testing.T) {
	t.Parallel()
	vip := netip.MustParseAddr("192.0.2.1")
	for name, c := range map[string]struct {
		ready, serves bool
		grade         announce.Grade
		want          bool
	}{
		"it serves":       {true, true, announce.Yes, true},
		"local elsewhere": {true, true, announce.No, true},
		"waited for":      {true, false, announce.Yes, false},
		"the node leaves": {true, true, announce.Leaving, false},
		"not ready":       {false, false, announce.No, false},
	} {
		l := linkOf(t)
		l.set(&Plan{Ready: c.ready, Serves: c.serves,
			Links: map[string][]LinkVIP{"none": {{VIP: vip, Grade: c.grade}}}},
			l.keys, frame.MAC{})
		if got := l.keeps(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// While a link is down its queue stays empty, however long that is and however often VIPs come and
// go.
func TestQueueOfDownLink(t *testing.T) {
	t.Parallel()
	l := linkOf(t)
	vip := netip.MustParseAddr("192.0.2.1")
	gained := 0
	for now, end := time.Now(), time.Now().Add(time.Minute); now.Before(end); now = now.Add(DefaultEvery) {
		if l.step(now); l.members.Owns(vip) {
			gained++
		}
		l.members.SetVIPs([]members.LocalVIP{{VIP: vip, Eligible: !l.members.Owns(vip)}}, true, now)
	}
	if n := len(l.queue.rounds[0]); n > 0 || gained < 100 {
		t.Errorf("the VIP was here %d times, and %d announcements wait", gained, n)
	}
}

// TestStalledLinkDoesNotAnswer: a link that has sent no hello for so long that other members take
// its VIPs stops answering for them; otherwise two gateways would answer.
func TestStalledLinkDoesNotAnswer(t *testing.T) {
	t.Parallel()
	l := linkOf(t)
	vip := netip.MustParseAddr("192.0.2.1")
	l.set(&Plan{Ready: true, Serves: true,
		Links: map[string][]LinkVIP{"none": {{VIP: vip, Grade: announce.Yes}}}}, l.keys,
		frame.MAC{})
	for now := time.Now(); !l.members.Owns(vip); now = now.Add(DefaultEvery) {
		if l.step(now); now.After(time.Now().Add(time.Minute)) {
			t.Fatal("it does not own the VIP after a minute")
		}
	}
	asks := frame.Packet{Asks: vip, FromMAC: frame.MAC{2}}
	l.stepped = time.Now()
	if _, yes := l.answer(&sockets{mac: frame.MAC{4}}, asks); !yes {
		t.Error("it does not answer")
	}
	l.stepped = time.Now().Add(-DefaultSilent * DefaultEvery)
	if _, yes := l.answer(&sockets{mac: frame.MAC{4}}, asks); yes {
		t.Error("it answers although it has stalled")
	}
}

// TestSocketsThatCannotBeOpened: an error is returned, here because the loopback device has no
// Ethernet address.
func TestSocketsThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	s, err := openSockets("lo")
	if s != nil || err == nil || !strings.Contains(err.Error(), "not an Ethernet address") {
		t.Errorf("sockets %v, error %v", s, err)
	}
}
