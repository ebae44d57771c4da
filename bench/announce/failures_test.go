//go:build root

package announce

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"sluice.dev/sluice/bench/machine"
)

// birdSession and frrSession are routers with one eBGP session over IPv4. @BFD and @RESTART are
// replaced.
const birdSession = birdHead + `
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
	if bfd && restart { // BFD does not end what a restart keeps
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

// withSession is a lab whose router has the route to the VIP.
func withSession(t *testing.T, kind string, bfd, restart bool, flags ...string) *lab {
	t.Helper()
	l := newLab(t, config{kind: kind, flags: flags})
	text := sessionOf(kind, bfd, restart)
	l.startRouter(text, text)
	l.write(objectsOf(bfd, restart))
	l.start()
	l.routed(vip, true, 20*time.Second)
	if bfd {
		l.bfdUp()
		l.settle()
	}
	return l
}

// settle waits until the route has been there for a second: FRR ends the first session when BFD
// comes up beside it.
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

// stays looks for a while whether the route is there all the time.
func (l *lab) stays(d time.Duration, during string) {
	l.t.Helper()
	p := netip.MustParsePrefix(vip)
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if has, err := l.router.HasRoute(p); !has || err != nil {
			l.t.Fatalf("%s: the route is gone (%v)", during, err)
		}
	}
}

// gone returns how long after the beginning of a failure the route is gone.
func (l *lab) gone(fail func() error) time.Duration {
	l.t.Helper()
	begin, failed := time.Now(), make(chan error, 1)
	go func() { failed <- fail() }()
	l.routed(vip, false, 5*time.Second)
	took := time.Since(begin)
	must(l.t, <-failed)
	return took
}

// report writes the times of runs, and compares the longest with a bound.
func report(t *testing.T, what string, most time.Duration, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	t.Logf("%s: %v", what, took)
	if last := took[len(took)-1]; last > machine.Slower(most) {
		t.Errorf("%s took %v, want %v at most", what, last, most)
	}
}

// Without hold, a packet process that is killed takes its routes along; when it is back, so are
// they.
func TestKilledWithoutHold(t *testing.T) {
	timed(t, func(t *testing.T, kind string) {
		l := withSession(t, kind, false, false, "--hold", "0s")
		var took []time.Duration
		for range runs() {
			took = append(took, l.gone(l.gate.Kill))
			must(t, l.gate.Start(l.ctx))
			l.routed(vip, true, 5*time.Second)
		}
		report(t, "killed, hold 0", 500*time.Millisecond, took)
	})
}

// With hold, no route moves while the packet process is killed and started again.
func TestKilledWithHold(t *testing.T) {
	both(t, func(t *testing.T, kind string) {
		l := withSession(t, kind, false, false)
		for range runs() {
			must(t, l.gate.Kill())
			l.stays(time.Second, "killed")
			must(t, l.gate.Start(l.ctx))
			l.stays(time.Second, "started again")
			l.answers(vip4)
		}
	})
}

// The interface to the backends goes down, and comes up again.
func TestInterfaceDown(t *testing.T) {
	timed(t, func(t *testing.T, kind string) {
		l := withSession(t, kind, false, false)
		back := l.Gateway.Interfaces[1].Name
		set := func(f func(netlink.Link) error) error {
			return l.Gateway.Run(func() error {
				link, err := netlink.LinkByName(back)
				if err != nil {
					return err
				}
				return f(link)
			})
		}
		var took []time.Duration
		for range runs() {
			took = append(took, l.gone(func() error { return set(netlink.LinkSetDown) }))
			must(t, set(netlink.LinkSetUp))
			l.routed(vip, true, 10*time.Second)
		}
		report(t, back+" down", 500*time.Millisecond, took)
	})
}

// The gateway is gone without a word, and the router's own link stays up: BFD tells, and BFD alone.
func TestGatewayGone(t *testing.T) {
	timed(t, func(t *testing.T, kind string) {
		var took []time.Duration
		for range runs() {
			l := withSession(t, kind, true, false)
			took = append(took, l.gone(func() error {
				return l.Gateway.Run(func() error {
					link, err := netlink.LinkByName(l.Gateway.Interfaces[0].Name)
					if err != nil {
						return err
					}
					return netlink.LinkDel(link)
				})
			}))
			l.forget()
		}
		report(t, "gateway gone", time.Second, took)
	})
}

// An announcer that is killed takes its routes along without graceful restart.
func TestAnnouncerKilled(t *testing.T) {
	onlyFull(t)
	timed(t, func(t *testing.T, kind string) {
		l := withSession(t, kind, false, false)
		var took []time.Duration
		for range runs() {
			took = append(took, l.gone(l.kill))
			l.start()
			l.routed(vip, true, 20*time.Second)
		}
		report(t, "announcer killed", 500*time.Millisecond, took)
	})
}

// With graceful restart no route moves while the announcer is killed or ended, and started again;
// also where BFD runs in it, if the router can tell the two apart.
func TestAnnouncerRestarts(t *testing.T) {
	both(t, func(t *testing.T, kind string) { restarts(t, kind, false) })
}

// With BFD in the announcer, too, which ends with it. Not with FRR 8.4.4: with
// check-control-plane-failure it kept the routes in some runs, and not in others.
func TestAnnouncerRestartsWithBFD(t *testing.T) {
	onlyFull(t)
	t.Parallel()
	restarts(t, "bird", true)
}

func restarts(t *testing.T, kind string, bfd bool) {
	l := withSession(t, kind, bfd, true)
	for i := range runs() {
		if i%2 == 0 {
			must(t, l.kill())
		} else {
			l.ended = true
			must(t, l.ours.Stop(5*time.Second))
		}
		l.stays(time.Second, "ended")
		l.start()
		l.within(20*time.Second, "the session", func() (bool, error) {
			l.stays(10*time.Millisecond, "starting")
			v, err := l.ask()
			return err == nil && len(v.Peers) == 1 && v.Peers[0].Up, err
		})
		l.stays(2*time.Second, "started") // End-of-RIB comes within
	}
	// What is not announced any more goes, as soon as the next one has told all.
	must(t, l.kill())
	l.write(replaceWords(objectsOf(bfd, true), "203.0.113.0/24, ", ""))
	l.start()
	l.routed(vip, false, 20*time.Second)
}

// What is announced is in a file for the next process; nothing is, after a clean stop of the
// gateway.
func TestStateFile(t *testing.T) {
	t.Parallel()
	l := withSession(t, "bird", false, false)
	path := filepath.Join(l.state(), "announced.json")
	l.within(5*time.Second, "the file", func() (bool, error) {
		_, err := os.Stat(path)
		return err == nil, err
	})
	must(t, l.gate.Stop())
	l.routed(vip, false, 20*time.Second)
	l.within(5*time.Second, "no file", func() (bool, error) {
		_, err := os.Stat(path)
		return os.IsNotExist(err), err
	})
}
