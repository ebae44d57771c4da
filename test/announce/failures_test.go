//go:build root

package announce

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/test/bed/launch"
	"sluice.dev/sluice/test/bed/machine"
	"sluice.dev/sluice/test/bed/topo"
)

// birdSession and frrSession configure a router with one eBGP session over IPv4. @BFD and @RESTART
// are replaced.
const birdSession = birdHead + `
debug protocols { states, events };
protocol bfd { interface "*" { interval 100 ms; multiplier 3; }; }
protocol bgp four {
  local CLIENT4 as 64501; neighbor GATEWAY4 as 64500; passive; connect retry time 1; error wait time 1, 1;
  ipv4 { import all; export none; }; @BFD @RESTART
}
`

const frrSession = `
log file /dev/null
router bgp 64501
 bgp router-id CLIENT4
 no bgp ebgp-requires-policy
 neighbor GATEWAY4 remote-as 64500
 neighbor GATEWAY4 passive
 @BFD
 @RESTART
`

// sessionOf returns the router's configurations with BFD and graceful restart, or without.
func sessionOf(kind string, bfd, restart bool) (text string) {
	type words struct{ bfd, noBFD, restart, noRestart string }
	w := words{"bfd on;", "", "graceful restart on;", "graceful restart off;"}
	text = birdSession
	if kind == "frr" {
		w = words{"neighbor GATEWAY4 bfd 3 100 100", "!", "bgp graceful-restart", "bgp graceful-restart-disable"}
		text = frrSession
	}
	// The end of BFD with the announcer must not end what a graceful restart keeps: its packets
	// have the C bit clear, which means that BFD shares the fate of the control plane (RFC 5882,
	// section 4.3.2).
	if bfd && restart {
		w.bfd = map[string]string{"bird": "bfd graceful;",
			"frr": w.bfd + "\n neighbor GATEWAY4 bfd check-control-plane-failure"}[kind]
	}
	if !bfd {
		w.bfd = w.noBFD
	}
	if !restart {
		w.restart = w.noRestart
	}
	return replaceWords(text, "@BFD", w.bfd, "@RESTART", w.restart)
}

const objects = pools + `
apiVersion: sluice.dev/v1alpha1
kind: BFDProfile
metadata: {name: fast}
spec: {receiveInterval: 100, transmitInterval: 100}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPPeer
metadata: {name: four}
spec: {myASN: 64500, peerASN: 64501, peerAddress: CLIENT4, connectTime: 1s, enableGracefulRestart: @RESTART@BFD}
---
apiVersion: sluice.dev/v1alpha1
kind: BGPAdvertisement
metadata: {name: all}
`

func objectsOf(bfd, restart bool) string {
	profile := ""
	if bfd {
		profile = ", bfdProfile: fast"
	}
	return replaceWords(objects, "@BFD", profile, "@RESTART", fmt.Sprint(restart))
}

// withSession returns a lab whose router has the route to the VIP.
func withSession(t *testing.T, kind string, bfd, restart bool, flags ...string) *lab {
	t.Helper()
	return withSessionOf(t, config{kind: kind, flags: flags}, bfd, restart)
}

func withSessionOf(t *testing.T, c config, bfd, restart bool) *lab {
	t.Helper()
	l := newLab(t, c)
	text := sessionOf(c.kind, bfd, restart)
	l.startRouter(text, text)
	l.write(objectsOf(bfd, restart))
	l.start()
	l.routed(vip, true, 20*time.Second)
	// The router may have the route before the announcer has processed the event of its session.
	l.within(20*time.Second, "the announcer says that its session is up", func() (bool, error) {
		v, err := l.ours.Ask(l.ctx)
		return err == nil && len(v.Peers) > 0 && v.Peers[0].Up, err
	})
	if bfd {
		l.bfdUp()
		l.settle()
	}
	return l
}

// settle waits until the route has existed for a second: FRR ends the first session when BFD comes
// up during it.
func (l *lab) settle() {
	l.t.Helper()
	p, since := netip.MustParsePrefix(vip), time.Now()
	l.within(20*time.Second, "the route to stay", func() (bool, error) {
		has, err := l.router.HasRoute(p)
		if !has {
			since = time.Now()
		}
		return time.Since(since) > time.Second, err
	})
}

const vip = vip4 + "/32"

func (l *lab) bfdUp() {
	l.t.Helper()
	if l.kind == "bird" {
		l.asked("show bfd sessions", "Up")
		return
	}
	l.asked("show bfd peers", "Status: up")
}

// stays checks for a while that the route exists all the time.
func (l *lab) stays(d time.Duration, during string) {
	l.t.Helper()
	p := netip.MustParsePrefix(vip)
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if has, err := l.router.HasRoute(p); !has || err != nil {
			l.t.Fatalf("%s: the route is gone (%v)", during, err)
		}
	}
}

// gone returns how long after the beginning of a failure the route was withdrawn.
func (l *lab) gone(fail func() error) time.Duration {
	l.t.Helper()
	begin, failed := time.Now(), make(chan error, 1)
	go func() { failed <- fail() }()
	l.routed(vip, false, 5*time.Second)
	took := time.Since(begin)
	must(l.t, <-failed)
	return took
}

var latenesses sync.Map // by the name of a test

// latenessOf returns the scheduling delays of the machine during a test.
func latenessOf(t *testing.T) *machine.Lateness {
	l, _ := latenesses.LoadOrStore(t.Name(), new(machine.Lateness))
	return l.(*machine.Lateness)
}

// report prints the times of runs, and compares the longest with a bound. Between a failure and its
// effect on the client several processes wake up: gateway, announcer, router or peer, and the test.
func report(t *testing.T, what string, most time.Duration, took []time.Duration) {
	t.Helper()
	const wakeUps = 10
	slices.Sort(took)
	bound, late := latenessOf(t).Bound(most, wakeUps)
	t.Logf("%s: %v; threads woke up to %v late", what, took, late)
	if last := took[len(took)-1]; last > bound {
		t.Errorf("%s took %v, want %v at most, and %v where threads wake %v late", what, last, most, bound, late)
	}
}

// Each failure withdraws the routes at once: the packet process is killed, without hold; the
// interface to the backends goes down; the gateway vanishes while the router's own link stays up,
// which only BFD detects.
func TestRouteGoes(t *testing.T) {
	timed(t, func(t *testing.T, kind string) {
		var killed, down, gone []time.Duration
		for range runs() {
			l := withSession(t, kind, true, false, "--hold", "0s")
			killed = append(killed, l.gone(l.gate.Kill))
			must(t, l.gate.Start(l.ctx))
			l.routed(vip, true, 20*time.Second)
			back := l.Gateway.Interfaces[1].Name
			down = append(down, l.gone(func() error { return l.setLink(back, netlink.LinkSetDown) }))
			must(t, l.setLink(back, netlink.LinkSetUp))
			l.routed(vip, true, 20*time.Second)
			gone = append(gone, l.gone(func() error { return l.Gateway.Unplug(l.Gateway.Interfaces[0].Name) }))
			l.forget()
		}
		report(t, "packet process killed, hold 0", 500*time.Millisecond, killed)
		report(t, "interface to the backends down", 500*time.Millisecond, down)
		report(t, "gateway gone", time.Second, gone)
	})
}

// setLink changes an interface of the gateway.
func (l *lab) setLink(name string, set func(netlink.Link) error) error {
	return l.Gateway.Run(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return set(link)
	})
}

// With hold, no route moves while the packet process is killed and restarted, and no open
// connection breaks.
func TestKilledWithHold(t *testing.T) {
	t.Parallel()
	beside(t, func(t *testing.T, kind string) {
		// The longest hold: ten kills in a row use up the default one.
		l := withSession(t, kind, false, false, "--hold", "30s")
		flows, err := l.Clients[0].OpenTCP(l.ctx, l.open(few(200, 20), 20*time.Millisecond))
		must(t, err)
		defer flows.Stop()
		for range runs() {
			l.answered(flows)
			must(t, l.gate.Kill())
			l.stays(held, "killed")
			must(t, l.gate.Start(l.ctx))
			l.stays(held, "started again")
			l.answered(flows)
		}
		r := flows.Stop()
		t.Logf("%d connections held through %d kills, %d requests: %d broken", len(flows.States()), runs(), r.Requests,
			flows.Broken())
	})
}

// A packet process that is killed again and again is held once. After that its routes are withdrawn
// with each end, and other gateways are preferred while it forwards.
func TestKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	beside(t, func(t *testing.T, kind string) {
		l := withSession(t, kind, false, false, "--hold", "6s")
		must(t, l.gate.Kill())
		l.stays(held, "killed once")
		must(t, l.gate.Start(l.ctx))
		l.forwards()
		must(t, l.gate.Kill())
		l.routed(vip, false, 8*time.Second) // the rest of the hold
		must(t, l.gate.Start(l.ctx))        // the last resort until it has forwarded for 18 s
		l.routed(vip, true, 20*time.Second)
		path := strings.TrimSpace(strings.Repeat("64500 ", 9))
		l.asked(map[string]string{"bird": "show route all " + vip, "frr": "show bgp ipv4 unicast " + vip4}[kind], path)
		must(t, l.gate.Kill())
		took := l.routed(vip, false, 5*time.Second)
		t.Logf("killed for the third time: the route goes after %v", took)
		must(t, l.gate.Start(l.ctx))
		l.routed(vip, true, 20*time.Second)
		l.answers(vip4)
	})
}

// forwards waits until the announcer knows that the packet process forwards.
func (l *lab) forwards() {
	l.t.Helper()
	l.within(20*time.Second, "the announcer knows that the gateway forwards", func() (bool, error) {
		v, err := l.ours.Ask(l.ctx)
		if err != nil {
			return false, err
		}
		return !strings.Contains(v.Why, "process"), errors.New(v.Why)
	})
}

// held is how long a test checks that a route stays.
const held = 500 * time.Millisecond

// open describes flows to the VIP, each of which sends requests all the time.
func (l *lab) open(n int, interval time.Duration) topo.FlowLoad {
	return topo.FlowLoad{Targets: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(vip4), port)}, Flows: n,
		Interval: interval}
}

// answered waits until each flow has got another answer, and fails if one is broken.
func (l *lab) answered(flows *topo.Flows) {
	l.t.Helper()
	must(l.t, flows.AnsweredAgain(l.ctx, machine.Slower(20*time.Second), 1))
	if n := flows.Broken(); n > 0 {
		l.t.Fatalf("%d connections are broken", n)
	}
}

// The routes of a killed announcer without graceful restart are withdrawn.
func TestAnnouncerKilled(t *testing.T) {
	onlyFull(t)
	timed(t, func(t *testing.T, kind string) {
		l := withSession(t, kind, false, false)
		var took []time.Duration
		for range runs() {
			took = append(took, l.gone(l.ours.Kill))
			l.start()
			l.routed(vip, true, 20*time.Second)
		}
		report(t, "announcer killed", 500*time.Millisecond, took)
	})
}

// With graceful restart no route moves while the announcer is killed or ended, and restarted, and
// no packet is lost.
func TestAnnouncerRestarts(t *testing.T) {
	both(t, func(t *testing.T, kind string) { restarts(t, kind, false) })
}

// The same with BFD in the announcer, which ends with it.
func TestAnnouncerRestartsWithBFD(t *testing.T) {
	onlyFull(t)
	both(t, func(t *testing.T, kind string) { restarts(t, kind, true) })
}

// endOfRIB is the latest time at which a restarted announcer has sent all routes and the
// End-of-RIB: after its deferral time of a second (package bgp).
const endOfRIB = 1200 * time.Millisecond

// otherVIP is no longer announced after the last restart.
const otherVIP = "198.51.100.10"

func restarts(t *testing.T, kind string, bfd bool) {
	l := withSession(t, kind, bfd, true)
	l.apply(launch.Service{Name: "echo", Port: port, UDP: true, VIPs: []string{vip4, otherVIP}})
	l.write(replaceWords(objectsOf(bfd, true), "203.0.113.0/24", "203.0.113.0/24, 198.51.100.0/24"))
	l.routed(otherVIP+"/32", true, 20*time.Second)
	load := l.open(10, 5*time.Millisecond)
	load.Timeout = machine.Slower(time.Second)
	datagrams, err := l.Clients[0].OpenUDP(l.ctx, load)
	must(t, err)
	defer datagrams.Stop()
	for i := range runs() {
		if i%2 == 0 {
			must(t, l.ours.Kill())
		} else {
			must(t, l.ours.Stop())
		}
		l.stays(held, "ended")
		if i == runs()-1 {
			l.write(objectsOf(bfd, true))
		}
		l.start()
		l.within(20*time.Second, "the session", func() (bool, error) {
			l.stays(10*time.Millisecond, "starting")
			v, err := l.ours.Ask(l.ctx)
			return err == nil && len(v.Peers) == 1 && v.Peers[0].Up, err
		})
		l.stays(endOfRIB, "started")
	}
	// A route that is no longer announced goes when the next announcer has sent all of its routes.
	l.routed(otherVIP+"/32", false, 20*time.Second)
	l.stays(held, "told all")
	r := datagrams.Finish()
	t.Logf("%d ends: %d datagrams, %d lost", runs(), r.Requests, r.Failed())
	if r.Failed() > 0 || r.Requests == 0 {
		t.Errorf("datagrams were lost: %v", r.Errors)
	}
}

// The announced VIPs are saved in a file for the next process, with the pools. Nothing is announced
// after a clean stop of the gateway.
func TestStateFile(t *testing.T) {
	t.Parallel()
	l := withSession(t, "bird", false, false)
	path := filepath.Join(l.ours.StateDir(), "announced.json")
	has := func(part string, wanted bool) {
		l.within(5*time.Second, "the file", func() (bool, error) {
			text, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(text), part) == wanted, err
		})
	}
	has(`"vips":[{"address"`, true)
	has(`"kind":"AddressPool"`, true)
	must(t, l.gate.Stop())
	l.routed(vip, false, 20*time.Second)
	has(`"vips":[{"address"`, false)
	has(`"kind":"AddressPool"`, true)
}

// When a node shuts down, gateway and announcer get their signals at the same time. Peers with
// graceful restart do not keep the routes of a gateway that drains, even for an open connection: no
// process follows.
func TestNodeEnds(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		l := withSessionOf(t, config{kind: kind, options: "drain: {timeout: 2s}\n"}, false, true)
		flows, err := l.Clients[0].OpenTCP(l.ctx, l.open(1, 20*time.Millisecond))
		must(t, err)
		defer flows.Stop()
		l.answered(flows)
		gate, begin := make(chan error, 1), time.Now()
		go func() { gate <- l.gate.Stop() }()
		must(t, l.ours.Stop())
		l.routed(vip, false, 5*time.Second)
		report(t, "gateway and announcer told to end", time.Second, []time.Duration{time.Since(begin)})
		must(t, <-gate)
	})
}
