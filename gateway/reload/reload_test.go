package reload

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// Environment of a process that is the next daemon of a test.
const (
	behaviourVariable = "SLUICE_RELOAD_BEHAVIOUR"
	dirVariable       = "SLUICE_RELOAD_DIRECTORY"
)

// What the next daemon does.
const (
	takes     = "takes over"
	refused   = "is refused"
	unable    = "cannot take over itself"
	hesitates = "is refused once, and takes over"
	dies      = "dies"
	waits     = "waits"
	takesLate = "is taking over when it is to be ended"
	takesMute = "is taking over then, and a third process has the socket of one that waits"
	waitsMute = "waits, and a third process has the socket for that"
	follows   = "is alone, and has not the socket"

	runs = "is the running one" // until SIGTERM
)

func TestMain(m *testing.M) {
	if what := os.Getenv(behaviourVariable); what != "" {
		os.Exit(behave(what, os.Getenv(dirVariable)))
	}
	os.Exit(m.Run())
}

func statusSocket(dir string) string  { return filepath.Join(dir, "status.sock") }
func waitingSocket(dir string) string { return filepath.Join(dir, "reload.sock") }

// listener says when somebody has connected.
type listener struct {
	net.Listener
	met chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	select {
	case l.met <- struct{}{}:
	default:
	}
	return c, err
}

// behave is the next daemon until SIGTERM.
func behave(what, dir string) int {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	fmt.Fprintln(os.Stderr, "NOTIFY_SOCKET is", os.Getenv("NOTIFY_SOCKET"))
	serve := func(path string, asked int) *listener {
		if path == waitingSocket(dir) && path != os.Getenv(config.WaitingVariable) {
			panic("told to wait on " + os.Getenv(config.WaitingVariable))
		}
		u, err := net.Listen("unix", path)
		if err != nil {
			panic(err)
		}
		l := &listener{Listener: u, met: make(chan struct{}, 1)}
		g := statustest.New()
		g.StatusView.PID = os.Getpid()
		if asked > 0 {
			g.StatusView.TakeOver = &status.TakeOverView{Refused: []string{"frames: another size"}, Asked: asked}
		}
		if what == unable {
			g.StatusView.TakeOver = &status.TakeOverView{Unable: "no interface eth5", Asked: asked}
		}
		go func() { _ = status.NewServer(g, slog.New(slog.DiscardHandler)).Serve(l) }()
		return l
	}
	switch what {
	case dies:
		return 7
	case refused, unable:
		serve(waitingSocket(dir), maxRefusals)
	case hesitates:
		serve(waitingSocket(dir), 1)
		fallthrough
	case takes:
		time.Sleep(50 * time.Millisecond)
		_ = os.Remove(statusSocket(dir))
		serve(statusSocket(dir), 0)
	case takesLate, takesMute:
		if what == takesLate {
			l := serve(waitingSocket(dir), 1)
			<-l.met
			l.Close()
		}
		time.Sleep(1200 * time.Millisecond) // longer than the reload waits
		if len(ended) > 0 {
			return 0
		}
		_ = os.Remove(statusSocket(dir))
		serve(statusSocket(dir), 0)
	case follows:
		pid, err := status.PeerPID(statusSocket(dir))
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGTERM)
		}
		if err != nil {
			panic(err)
		}
	case runs:
		serve(statusSocket(dir), 0)
	case waits, waitsMute:
	}
	<-ended
	return 0
}

// TestRun: the service manager hears of a next process that has taken over, and of no other; one
// that does not take over is ended.
func TestRun(t *testing.T) {
	for _, c := range []struct {
		what, err string
		within    time.Duration
		decide    time.Duration
	}{
		{takes, "", time.Minute, time.Minute}, {hesitates, "", time.Minute, time.Minute},
		{refused, "does not hand over, and continues: frames: another size", time.Minute, time.Minute},
		{unable, "the next process cannot take over, and the running one continues: no interface eth5", time.Minute,
			time.Minute},
		{dies, "exit status 7", time.Minute, time.Minute},
		{waits, "has not taken over within 200ms: it has not compiled all", 200 * time.Millisecond,
			400 * time.Millisecond},
		{waitsMute, fmt.Sprintf("has not taken over within 200ms: process %d has ", os.Getpid()),
			200 * time.Millisecond, 400 * time.Millisecond},
		{takesLate, "", time.Second, time.Minute}, {takesMute, "", time.Second, time.Minute},
	} {
		t.Run(c.what, func(t *testing.T) {
			dir := t.TempDir()
			running, err := net.Listen("unix", statusSocket(dir))
			if err != nil {
				t.Fatal(err)
			}
			defer running.Close()
			if c.what == takesMute || c.what == waitsMute {
				third, err := net.Listen("unix", waitingSocket(dir))
				if err != nil {
					t.Fatal(err)
				}
				defer third.Close()
			}
			manager, err := net.ListenPacket("unixgram", filepath.Join(dir, "notify"))
			if err != nil {
				t.Fatal(err)
			}
			defer manager.Close()
			t.Setenv(behaviourVariable, c.what)
			t.Setenv(dirVariable, dir)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			err = Run(t.Context(), Config{Program: self, StatusSocket: statusSocket(dir),
				WaitingSocket: waitingSocket(dir), NotifySocket: manager.LocalAddr().String(), Within: c.within,
				Decide: c.decide})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v, want %q", err, c.err)
				}
				if message := received(t, manager); message != "" {
					t.Errorf("the manager received %q", message)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			text, _, _ := strings.Cut(strings.TrimPrefix(received(t, manager), "MAINPID="), "\n")
			pid, err := strconv.Atoi(text)
			if owner, e := status.PeerPID(statusSocket(dir)); err != nil || e != nil || pid != owner {
				t.Fatalf("the main process is %q, want %d: %v", text, owner, errors.Join(err, e))
			}
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRunAlone: where the process before has ended, the next one is not ended, also if it has not
// the status socket: it has all, or starts. The service manager hears of it.
func TestRunAlone(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	running := exec.Command(self)
	running.Env = append(os.Environ(), behaviourVariable+"="+runs, dirVariable+"="+dir)
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel() // so that Run gives up then
		_ = running.Wait()
	}()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if pid, err := status.PeerPID(statusSocket(dir)); pid == running.Process.Pid {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	manager, err := net.ListenPacket("unixgram", filepath.Join(dir, "notify"))
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv(behaviourVariable, follows)
	t.Setenv(dirVariable, dir)
	err = Run(ctx, Config{Program: self, StatusSocket: statusSocket(dir), WaitingSocket: waitingSocket(dir),
		NotifySocket: manager.LocalAddr().String(), Within: time.Minute})
	<-ended
	if err == nil || !strings.Contains(err.Error(), "the previous process has ended, and the next one") {
		t.Errorf("%v", err)
	}
	text, _, _ := strings.Cut(strings.TrimPrefix(received(t, manager), "MAINPID="), "\n")
	pid, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("the manager was not told: %v", err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil { // it lives, or has no number any more
		t.Error(err)
	}
}

// heard is the message that has come, if any: it is sent before Run returns.
func received(t *testing.T, manager net.PacketConn) string {
	t.Helper()
	raw, err := manager.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var b [1024]byte
	var n int
	var received error
	if err := raw.Read(func(fd uintptr) bool {
		n, _, received = syscall.Recvfrom(int(fd), b[:], syscall.MSG_DONTWAIT)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if errors.Is(received, syscall.EAGAIN) {
		return ""
	} else if received != nil {
		t.Fatal(received)
	}
	return string(b[:n])
}

// TestRunWithoutDaemon: nothing is started where there is nothing to take over.
func TestRunWithoutDaemon(t *testing.T) {
	err := Run(t.Context(), Config{Program: "/none", StatusSocket: statusSocket(t.TempDir())})
	if err == nil || !strings.Contains(err.Error(), "no daemon to take over from") {
		t.Errorf("%v", err)
	}
}
