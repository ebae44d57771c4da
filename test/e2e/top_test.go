//go:build root

package e2e

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/test/bed/pty"
	"sluice.dev/sluice/test/bed/topo"
)

// terminal is a pseudo terminal with a program in it.
type terminal struct {
	master  *os.File
	c       *exec.Cmd
	columns uint16

	mu  sync.Mutex
	out bytes.Buffer
}

// inTerminal starts a command in a terminal of 80 columns and 24 lines.
func inTerminal(t *testing.T, env string, path string, args ...string) *terminal {
	t.Helper()
	master, slave := pty.Open(t, 24, 80)
	defer slave.Close()
	p := &terminal{master: master, c: exec.Command(path, args...), columns: 80}
	p.c.Env = append(os.Environ(), "TERM=xterm-256color", env)
	p.c.Stdin, p.c.Stdout, p.c.Stderr = slave, slave, slave
	p.c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			p.mu.Lock()
			p.out.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

// text returns what the program wrote.
func (p *terminal) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// repaint resizes the terminal, so that the program writes all cells and not only changed ones.
func (p *terminal) repaint(t *testing.T) {
	t.Helper()
	p.columns = 161 - p.columns
	if err := unix.IoctlSetWinsize(int(p.master.Fd()), unix.TIOCSWINSZ,
		&unix.Winsize{Row: 24, Col: p.columns}); err != nil {
		t.Fatal(err)
	}
}

// press types keys, and forgets what the program wrote before.
func (p *terminal) press(t *testing.T, keys string) {
	t.Helper()
	p.mu.Lock()
	p.out.Reset()
	p.mu.Unlock()
	if _, err := p.master.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// TestTop runs top in a terminal beside a gateway with many flows: screens, drill down and end. It
// prints the daemon's CPU time for each screen.
func TestTop(t *testing.T) {
	l := newLab(t, labConfig{small: true, quick: true})
	flows := 1000
	if full() {
		flows = 10_000
	}
	f, err := l.Clients[0].OpenUDP(l.ctx, topo.FlowLoad{Targets: []netip.AddrPort{at(vip4, dnsPort)}, Flows: flows,
		Interval: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Stop()
	l.eventually(time.Minute, "the flows are there", func() bool {
		s, err := l.gate.Client.Stats(l.ctx)
		return err == nil && len(s.Flows) > 0 && s.Flows[0].Used >= uint64(flows)
	})
	measure := func(what string) {
		const lasts = 5 * time.Second
		before := cpuTime(t, l.gate.PID())
		time.Sleep(lasts)
		used := cpuTime(t, l.gate.PID()) - before
		t.Logf("%d flows, %s: the daemon uses %.1f %% of a CPU", flows, what, 100*used.Seconds()/lasts.Seconds())
	}
	measure("without top")
	p := inTerminal(t, "NO_COLOR=1", daemonBinary, "--socket", l.gate.Socket(), "top")
	show := func(keys, want string) {
		t.Helper()
		if keys != "" {
			p.press(t, keys)
		}
		defer func() {
			if t.Failed() {
				t.Logf("top wrote %q", p.text())
			}
		}()
		l.eventually(20*time.Second, "top shows "+want, func() bool {
			if strings.Contains(p.text(), want) {
				return true
			}
			p.repaint(t)
			time.Sleep(200 * time.Millisecond)
			return false
		})
	}
	show("", "frontends")
	measure("Node")
	show("2", "default")
	measure("Services")
	show("/dns\r\r", l.Backends[0].Addr4().String())
	measure("Backends")
	show("\r", l.Clients[0].Addr4().String())
	show("4", strconv.Itoa(flows))
	measure("Clients")
	if colours := []string{"\x1b[31m", "\x1b[38;"}; slices.ContainsFunc(colours, func(c string) bool {
		return strings.Contains(p.text(), c)
	}) {
		t.Error("NO_COLOR is not obeyed")
	}
	p.press(t, "q")
	done := make(chan error, 1)
	go func() { done <- p.c.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("top: %v\n%q", err, p.text())
		}
	case <-time.After(20 * time.Second):
		t.Errorf("q does not end top: %v", p.c.Process.Kill())
	}
}
