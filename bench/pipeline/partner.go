package pipeline

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// partner is a process that measures on request, and waits otherwise: it answers each line with a
// line.
type partner struct {
	name    string // in errors
	process *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	stderr  bytes.Buffer
}

// startPartner starts a program and waits until it is ready.
func startPartner(ctx context.Context, name, path string, args ...string) (*partner, error) {
	p := &partner{name: name, process: exec.CommandContext(ctx, path, args...)}
	p.process.Stderr = &p.stderr
	p.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C is for this process, which ends the partner
	var err error
	if p.in, err = p.process.StdinPipe(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out, err := p.process.StdoutPipe()
	if err == nil {
		err = p.process.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.out = bufio.NewReader(out)
	line, err := p.answer()
	if err == nil && line != "ready" {
		err = fmt.Errorf("%s: not ready: %q", name, line)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// close ends the process.
func (p *partner) close() {
	_ = p.in.Close() // it ends at the end of its input; its exit status does not matter
	_ = p.process.Wait()
}

// ask sends a line and returns the answer.
func (p *partner) ask(line string) (string, error) {
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		return "", fmt.Errorf("%s: %w: %s", p.name, err, p.stderr.String())
	}
	return p.answer()
}

func (p *partner) answer() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		_ = p.process.Wait() // so that all its output has been read
		return "", fmt.Errorf("%s: the process ended: %w: %s", p.name, err, strings.TrimSpace(p.stderr.String()))
	}
	return strings.TrimSpace(line), nil
}

// sampleRequest is the request for a sample like gate.sample's.
func sampleRequest(l load, chunks int) string {
	p := l.params()
	return fmt.Sprintf("sample %s %s %d", p["headers"], p["packets"], chunks)
}

// nanos requests a sample.
func (p *partner) nanos(request string) (ns float64, err error) {
	line, err := p.ask(request)
	if err != nil {
		return 0, err
	}
	if _, err := fmt.Sscanf(line, "ns %f", &ns); err != nil {
		return 0, fmt.Errorf("%s: answer %q: %w", p.name, line, err)
	}
	return ns, nil
}
