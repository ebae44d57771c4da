package doctor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/trusted"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

func writeConfig(t *testing.T, dir, more string) string {
	t.Helper()
	file := filepath.Join(dir, "gw.yaml")
	text := "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\ninterfaces: [{name: lo}]\n" +
		"stateDir: " + dir + "\nmanifests: {directory: " + dir + "}\n" + more
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestReadStopped reads this host without a daemon; every Linux has a loopback.
func TestReadStopped(t *testing.T) {
	dir := t.TempDir()
	file := writeConfig(t, dir, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := Read(t.Context(), file, filepath.Join(dir, "status.sock"))
	if err != nil {
		t.Fatal(err)
	}
	if f.Config == nil || f.Running != nil || !errors.Is(f.RunningErr, status.ErrNotRunning) {
		t.Errorf("config %v (%v), running %v (%v)", f.Config, f.ConfigError, f.Running, f.RunningErr)
	}
	if f.Kernel == "" || f.CPUs == 0 || f.Memlock == 0 || !f.Manifests || f.Socket != SocketAbsent ||
		len(f.Sysctls) < 2 {
		t.Errorf("read %+v", f)
	}
	if want := (Listener{"tcp", netip.MustParseAddrPort(l.Addr().String())}); !slices.Contains(f.Listeners, want) {
		t.Errorf("%v is not among %v", want, f.Listeners)
	}
	lo := f.Interfaces[0]
	if lo.Err != nil || !lo.Up || lo.MTU == 0 || lo.Queues == 0 || lo.Program != "" || !lo.XDPKnown {
		t.Errorf("the loopback reads as %+v", lo)
	}
	if len(Examine(f)) == 0 {
		t.Error("nothing to say")
	}
}

// TestReadRefused: directories that others may write are refused in the words of the daemon.
func TestReadRefused(t *testing.T) {
	dir := t.TempDir()
	state, manifests := filepath.Join(dir, "state"), filepath.Join(dir, "manifests")
	file := filepath.Join(dir, "gw.yaml")
	text := "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\ninterfaces: [{name: lo}]\n" +
		"stateDir: " + state + "\nmanifests: {directory: " + manifests + "}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		make    []string
		mode    os.FileMode
		refused bool
	}{
		{"only their owner may write them", []string{state, manifests}, 0o755, false},
		{"stateDir is not there yet", []string{manifests}, 0o755, false},
		{"anybody may write them", []string{state, manifests}, 0o777 | os.ModeSticky, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, d := range tt.make {
				if err := errors.Join(os.Mkdir(d, 0o700), os.Chmod(d, tt.mode)); err != nil {
					t.Fatal(err)
				}
				defer os.Remove(d)
			}
			f, err := Read(t.Context(), file, filepath.Join(state, "status.sock"))
			if err != nil {
				t.Fatal(err)
			}
			for check, daemon := range map[string]error{"state-dir": trusted.StateDirectory(state),
				"manifests": trusted.Directory(manifests)} {
				findings := Examine(f)
				got := findings[slices.IndexFunc(findings, func(f Finding) bool { return f.Check == check })]
				if (got.Level == Fail) != tt.refused ||
					tt.refused && daemon.Error() != got.Subject+" "+got.Found+"; "+got.Do {
					t.Errorf("%+v, want %v", got, daemon)
				}
			}
		})
	}
}

// TestReadRunning: without a file the running daemon's configuration counts.
func TestReadRunning(t *testing.T) {
	dir := t.TempDir()
	g := statustest.New()
	g.StatusView.PID = os.Getpid()
	g.StatusView.Config.File = writeConfig(t, dir, "")
	f, err := Read(t.Context(), "", serve(t, dir, g))
	if err != nil {
		t.Fatal(err)
	}
	if f.Running == nil || f.Config == nil || f.ConfigFile != g.StatusView.Config.File || f.Socket != SocketAnswers {
		t.Errorf("read %+v", f)
	}
	if !slices.Equal(f.PortsInUse, g.PortsList) || f.PortsError != nil {
		t.Errorf("source ports %+v (%v), want %+v", f.PortsInUse, f.PortsError, g.PortsList)
	}
}

// serve serves the status of g in dir until the test ends, and returns the socket.
func serve(t *testing.T, dir string, g status.Gateway) (socket string) {
	t.Helper()
	socket = filepath.Join(dir, "status.sock")
	l, err := status.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	s := status.NewServer(g, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Shutdown(context.Background()), <-done); err != nil {
			t.Error(err)
		}
	})
	return socket
}

// TestUnanswered: a node whose clients send only SYNs, unless one of them has sent more of late.
func TestUnanswered(t *testing.T) {
	silent, well := netip.MustParseAddr("10.0.1.21"), netip.MustParseAddr("10.0.1.22")
	for name, tt := range map[string]struct {
		flows int
		other status.FlowView // the last flow to silent
		want  int
	}{
		"none has more than SYNs":     {40, status.FlowView{State: "SYN_SENT", IdleSeconds: 3}, 20},
		"few":                         {18, status.FlowView{State: "SYN_SENT", IdleSeconds: 3}, 0},
		"one has sent more":           {42, status.FlowView{State: "UNCONFIRMED", IdleSeconds: 3}, 0},
		"one has sent more long ago":  {42, status.FlowView{State: "UNCONFIRMED", IdleSeconds: 300}, 20},
		"another is UDP":              {42, status.FlowView{State: "UDP_NEW", IdleSeconds: 3}, 20},
		"an answer may be on its way": {42, status.FlowView{State: "SYN_SENT"}, 20},
	} {
		t.Run(name, func(t *testing.T) {
			g := statustest.New()
			g.Many(tt.flows)
			g.EachFlow(func(i int, v *status.FlowView) {
				v.Forwarding, v.State, v.IdleSeconds = "direct", "SYN_SENT", 3
				v.Backend = netip.AddrPortFrom(silent, 80)
				switch {
				case i%2 == 0:
					v.Backend, v.State = netip.AddrPortFrom(well, 80), "FIN_CLIENT"
				case i == tt.flows-1:
					v.State, v.IdleSeconds = tt.other.State, tt.other.IdleSeconds
				}
			})
			nodes := []TunnelNode{{Addr: well}, {Addr: silent}}
			unanswered(t.Context(), status.NewClient(serve(t, t.TempDir(), g)), nodes)
			if nodes[0].Unanswered != 0 || nodes[1].Unanswered != tt.want {
				t.Errorf("unanswered %d and %d, want 0 and %d", nodes[0].Unanswered, nodes[1].Unanswered, tt.want)
			}
		})
	}
}

func TestReadWithoutConfiguration(t *testing.T) {
	f, err := Read(t.Context(), "", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	if f.Config != nil || f.ConfigError != nil || len(f.Interfaces) != 0 {
		t.Errorf("read %+v", f)
	}
}

func TestReadAbsentInterface(t *testing.T) {
	if d := readInterface("sluice-none"); d.Err == nil {
		t.Errorf("read %+v", d)
	}
}

func TestReadSocket(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if got := readSocket(stale); got != SocketAnswers {
		t.Errorf("open: %s", got)
	}
	l.Close()
	for path, want := range map[string]SocketState{file: SocketObstacle, stale: SocketStale, dir +
		"/none": SocketAbsent} {
		if got := readSocket(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}

func TestParseProcAddr(t *testing.T) {
	for text, want := range map[string]string{
		"0100007F:1F90":                         "127.0.0.1:8080",
		"00000000:0016":                         "0.0.0.0:22",
		"B80D0120000000000000000001000000:0050": "[2001:db8::1]:80",
	} {
		if got, ok := parseProcAddr(text); !ok || got.String() != want {
			t.Errorf("%s: %v, %v, want %s", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "0100007F", "01:1", "xx:1", "0100007F:12345"} {
		if got, ok := parseProcAddr(text); ok {
			t.Errorf("%q reads as %v", text, got)
		}
	}
}

// TestReadAPI: what the API server is asked with is looked for where the daemon does.
func TestReadAPI(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := readAPI(file, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a kubeconfig that is not there: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := readAPI(file, ""); err == nil {
		t.Error("an empty kubeconfig passes")
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := readAPI(file, ""); err != nil {
		t.Error(err)
	}
	t.Setenv(apiHost, "192.0.2.1")
	t.Setenv(apiPort, "")
	if err := readAPI("", file); err == nil || !strings.Contains(err.Error(), "not a pod") {
		t.Errorf("without the environment of a pod: %v", err)
	}
	t.Setenv(apiPort, "443")
	if err := readAPI("", file); err != nil {
		t.Error(err)
	}
}

// TestSocketWithoutPermission: if the user may not read the directory, the daemon's socket counts
// neither as absent nor as an error. Root may read all directories, so the test uses a thread
// without CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH.
func TestSocketWithoutPermission(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "status.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(path, 0); err != nil {
		t.Fatal(err)
	}
	inDir := filepath.Join(dir, "d")
	if err := os.Mkdir(inDir, 0); err != nil {
		t.Fatal(err)
	}
	got := make(chan []SocketState)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with what it may
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var sets [2]unix.CapUserData
		if err := unix.Capget(&header, &sets[0]); err == nil {
			sets[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
			err = unix.Capset(&header, &sets[0])
			if err != nil {
				t.Error(err)
			}
		}
		got <- []SocketState{readSocket(path), readSocket(filepath.Join(inDir, "s"))}
	}()
	if states := <-got; !slices.Equal(states, []SocketState{SocketHidden, SocketHidden}) {
		t.Errorf("a socket of mode 0, one in a directory of mode 0: %v", states)
	}
}

func TestAccessPlatform(t *testing.T) {
	bits := []byte(strings.Repeat("0", 64))
	if !withoutAccessPlatform(string(bits) + "\n") {
		t.Error("bit 33 is not set, and that is not seen")
	}
	bits[33] = '1'
	if withoutAccessPlatform(string(bits)) || withoutAccessPlatform("") {
		t.Error("bit 33 is set, or cannot be read")
	}
}
