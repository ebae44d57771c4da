package status

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestNoAnswer: a request to a daemon that takes the connection and answers nothing ends, and the
// error names the process. Neither a read nor a change waits for ever.
func TestNoAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := NewClient(path)
	c.read, c.change = answersWithin(path, 50*time.Millisecond), answersWithin(path, 50*time.Millisecond)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for name, ask := range map[string]func() error{
		"read":   func() error { _, err := c.Services(t.Context()); return err },
		"flows":  func() error { return c.Flows(t.Context(), FlowFilter{}, nil) },
		"change": func() error { _, err := c.DeleteFlows(t.Context(), FlowFilter{}, true); return err },
		"wait":   func() error { _, err := c.Status(short, true); return err },
	} {
		err := ask()
		if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), fmt.Sprintf("process %d runs", os.Getpid())) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
