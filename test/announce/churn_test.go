//go:build root

package announce

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/topo"
)

// Services come and go while sessions run: the sessions stay up, connections to another VIP stay
// open, and in the end the router has exactly the routes of the remaining Services.
func TestChurn(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		l := withSession(t, kind, false, false)
		flows, err := l.Clients[0].OpenTCP(l.ctx, l.open(10, 20*time.Millisecond))
		must(t, err)
		defer flows.Stop()
		before, err := l.ours.Ask(l.ctx)
		must(t, err)
		services := few(200, 40)
		address := func(i int) string { return netip.AddrFrom4([4]byte{203, 0, 113, byte(20 + i)}).String() }
		name := func(i int) string { return "churn-" + strings.ReplaceAll(address(i), ".", "-") }
		there := map[int]bool{}
		random := rand.New(rand.NewPCG(1, 2))
		changes := 0
		turn := func(i int) {
			t.Helper()
			if changes++; there[i] {
				must(t, l.gate.Remove(name(i)))
				delete(there, i)
				return
			}
			l.apply(launch.Service{Name: name(i), Port: port, VIPs: []string{address(i)}})
			there[i] = true
		}
		begin := time.Now()
		for i := range services { // each is created, and some earlier ones are deleted
			turn(i)
			turn(random.IntN(i + 1))
			must(t, topo.Pause(l.ctx, 10*time.Millisecond))
		}
		for i := range services { // each comes back or goes
			turn(i)
			must(t, topo.Pause(l.ctx, 5*time.Millisecond))
		}
		want := []netip.Prefix{netip.MustParsePrefix(vip)}
		for i := range there {
			want = append(want, netip.MustParsePrefix(address(i)+"/32"))
		}
		slices.SortFunc(want, netip.Prefix.Compare)
		churned := time.Since(begin)
		var got []netip.Prefix
		took := l.within(20*time.Second, "a route for each Service that is left, and no other", func() (bool, error) {
			var err error
			if got, err = l.router.Routes(); err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("missing %v, too many %v", without(want, got), without(got, want))
			}
			return err == nil, err
		})
		l.stays(time.Second, "after the churn")
		if got, err = l.router.Routes(); err != nil || !slices.Equal(got, want) {
			t.Errorf("a second later: %v, missing %v, too many %v", err, without(want, got), without(got, want))
		}
		l.answered(flows)
		after, err := l.ours.Ask(l.ctx)
		must(t, err)
		if !after.Peers[0].Up || !after.Peers[0].Since.Equal(*before.Peers[0].Since) {
			t.Errorf("the session is not what it was: %+v, then %+v", before.Peers, after.Peers)
		}
		t.Logf("%s: %d Services created and deleted %d times in %v; the %d routes were exact %v later, %d of %d "+
			"connections broken", kind, services, changes, churned.Round(time.Millisecond), len(want),
			took.Round(time.Millisecond), flows.Broken(), len(flows.States()))
	})
}

// without returns the elements of a that are not in b.
func without(a, b []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(a), func(p netip.Prefix) bool { return slices.Contains(b, p) })
}
