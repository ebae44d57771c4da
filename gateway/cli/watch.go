package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sluice.dev/sluice/internal/table"
	"sluice.dev/sluice/internal/wake"
	"sluice.dev/sluice/serve/status"
)

// The interval of --watch without a value, and the least one.
const (
	watchEvery   = 2 * time.Second
	watchFastest = 100 * time.Millisecond
)

// intervalFlag is a flag that takes an interval; 0: it is not given.
type intervalFlag time.Duration

// String, Set and Type implement pflag.Value.
func (f *intervalFlag) String() string {
	if *f == 0 {
		return ""
	}
	return time.Duration(*f).String()
}

// Type names the flag's values in help.
func (f *intervalFlag) Type() string { return "interval" }

// Set returns an error for a text that is no interval, or one that is too short.
func (f *intervalFlag) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil || d < watchFastest {
		return fmt.Errorf("write an interval such as --watch=5s, of at least %v", watchFastest)
	}
	*f = intervalFlag(d)
	return nil
}

// watched adds the flag --watch, with which c runs again and again.
func (s *session) watched(c *cobra.Command) {
	var every intervalFlag
	c.Flags().Var(&every, "watch", "print again and again, each 2s or --watch=INTERVAL, until interrupted")
	c.Flag("watch").NoOptDefVal = watchEvery.String()
	accepts, run := c.Args, c.RunE
	c.Args = func(c *cobra.Command, args []string) error {
		if c.Flags().Changed("watch") && len(args) > 0 {
			if d, err := time.ParseDuration(args[0]); err == nil {
				return fmt.Errorf("the interval belongs to the flag: --watch=%v", d)
			}
		}
		return accepts(c, args)
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		if every == 0 {
			return run(c, args)
		}
		return s.repeat(c, time.Duration(every), func() error { return run(c, args) })
	}
}

// repeat runs a command and shows its output, until ctx ends or the command fails. After the first
// page it waits for a daemon that is being restarted.
func (s *session) repeat(c *cobra.Command, every time.Duration, run func() error) error {
	ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, left := s.attached(ctx, nil)
	defer left()
	c.SetContext(ctx)
	var page bytes.Buffer
	s.out, s.notes = &page, &page
	defer func() { s.out, s.notes = s.app.Out, s.app.Err }()
	for {
		s.page++
		page.Reset()
		err := run()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (s.page == 1 ||
			!errors.Is(err, status.ErrNotRunning) && !errors.Is(err, status.ErrNoAnswer)):
			return err
		case err != nil:
			page.Reset()
			s.note(err.Error())
		}
		if err := s.showPage(c, every, page.String()); err != nil {
			return err
		}
		if !wake.After(ctx, every) {
			return nil
		}
	}
}

// Control sequences (ECMA-48): the cursor goes home, and everything from it on is erased.
const clearScreen = "\x1b[H\x1b[J"

// showPage prints an output of a command. On a terminal it replaces the page before, and is cut at
// the terminal's height; otherwise an empty line or, with -o yaml, the mark of a document is
// between.
func (s *session) showPage(c *cobra.Command, every time.Duration, page string) error {
	width, height := s.terminal()
	switch {
	case height > 0 && s.format.text() && os.Getenv("TERM") != "dumb":
		head := fmt.Sprintf("%s, each %v: %s", c.CommandPath(), every, time.Now().Format(time.TimeOnly))
		lines := strings.Split(strings.TrimSuffix(page, "\n"), "\n")
		if more := len(lines) + 2 - (height - 1); more > 0 {
			lines = append(lines[:max(0, len(lines)-more-1)], fmt.Sprintf("... and %d more lines", more+1))
		}
		for i := range lines { // a line that the terminal wraps would take two
			lines[i] = cutPainted(lines[i], width)
		}
		page = clearScreen + table.Cut(head, width) + "\n\n" + strings.Join(lines, "\n") + "\n"
	case s.format == formatYAML:
		page = "---\n" + page
	case s.page > 1 && s.format.text():
		page = "\n" + page
	}
	_, err := s.app.Out.Write([]byte(page))
	return err
}

// terminal returns the size of the terminal that the output is; 0 if it is none.
func (s *session) terminal() (width, height int) {
	if s.app.terminal != nil {
		return s.app.terminal()
	}
	file, ok := s.app.Out.(*os.File)
	if !ok {
		return 0, 0
	}
	size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0
	}
	return int(size.Col), int(size.Row)
}
