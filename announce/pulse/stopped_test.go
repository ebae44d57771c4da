package pulse

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// followVariable makes the test binary a reader of a socket.
const followVariable = "SLUICE_TEST_FOLLOW"

// TestStoppedReader: a reader that was suspended for longer than Silence reads the lines that came
// meanwhile, and does not count the gateway as lost.
func TestStoppedReader(t *testing.T) {
	if path := os.Getenv(followVariable); path != "" {
		Follow(t.Context(), path, func(s Sight) { fmt.Printf("sight: %q\n", s.Lost) }, nil)
		return
	}
	t.Parallel()
	path := filepath.Join(t.TempDir(), "p")
	serve(t, path, &State{PID: 1, Phase: Serving})
	reader := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStoppedReader$")
	reader.Env = append(os.Environ(), followVariable+"="+path)
	out, err := reader.StdoutPipe()
	if err == nil {
		err = reader.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	sights := make(chan string, 64)
	go func() {
		defer close(sights)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if said, is := strings.CutPrefix(lines.Text(), "sight: "); is {
				sights <- said
			}
		}
	}()
	if first := <-sights; first != `""` {
		t.Fatalf("lost at first: %s", first)
	}
	for range 5 {
		signal(t, reader.Process, syscall.SIGSTOP)
		time.Sleep(Silence + 3*Every) // the gateway continues to write; the socket's buffer has room
		signal(t, reader.Process, syscall.SIGCONT)
		time.Sleep(2 * Every)
	}
	signal(t, reader.Process, syscall.SIGKILL)
	for said := range sights {
		t.Errorf("it saw %s", said)
	}
	_ = reader.Wait() // it was killed
}

func signal(t *testing.T, p *os.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}
