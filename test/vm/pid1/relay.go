package pid1

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// relayed is a stream of the command's on its way to the host. A virtio port can be opened once,
// and neither polled for nor reopened by name like a pipe, so the command has a pipe.
type relayed struct {
	in   *os.File // the command's output
	done chan error
}

// relay makes a stream that goes to a virtio port. Errors go to the console.
func relay(port string, console io.Writer) (*relayed, error) {
	to, err := openPort(port)
	if err != nil {
		return nil, err
	}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	r := &relayed{in: in, done: make(chan error, 1)}
	go func() {
		_, err := io.Copy(struct{ io.Writer }{to}, out) // without splice, which ports do not take from pipes
		if err != nil {
			fmt.Fprintf(console, "vm: guest: %s: %v\n", port, err)
		}
		r.done <- to.Close()
	}()
	return r, nil
}

// end waits until all that was written has reached the host.
func (r *relayed) end() {
	_ = r.in.Close() // nothing was written from here that could be lost
	<-r.done
}

// openPort opens a virtio port by the name that the host gave it.
func openPort(name string) (*os.File, error) {
	ports, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, p := range ports {
		if text, err := os.ReadFile(p); err == nil && strings.TrimSpace(string(text)) == name {
			return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(p))), os.O_WRONLY, 0)
		}
	}
	return nil, fmt.Errorf("no virtio port %q", name)
}
