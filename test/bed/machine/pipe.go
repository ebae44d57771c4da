package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// FillPipe writes to a pipe until it has no room.
func FillPipe(pipe *os.File) error {
	if err := pipe.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		return err
	}
	for {
		if _, err := pipe.Write(make([]byte, 1024)); errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// mainVariable makes a test binary run the program's main.
const mainVariable = "SLUICE_TEST_MAIN"

// RunMain is a TestMain: it runs the tests, or main in a process of StartUnread.
func RunMain(tests interface{ Run() int }, main func()) {
	if os.Getenv(mainVariable) == "" {
		os.Exit(tests.Run())
	}
	main()
}

// Unread is a process whose standard error is a pipe that nobody reads.
type Unread struct {
	command *exec.Cmd
	pipe    *os.File // the end for a reader
	ended   chan error
}

// StartUnread runs the main of a test binary that uses RunMain. Its standard error is a full pipe,
// or if gone a pipe without a reader.
func StartUnread(gone bool, args ...string) (*Unread, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer write.Close()
	u := &Unread{command: exec.Command(os.Args[0], args...), pipe: read, ended: make(chan error, 1)}
	u.command.Env, u.command.Stderr = append(os.Environ(), mainVariable+"=1"), write
	err = FillPipe(write)
	if gone {
		read.Close()
	}
	if err == nil {
		err = u.command.Start()
	}
	if err != nil {
		read.Close()
		return nil, err
	}
	go func() { u.ended <- u.command.Wait() }()
	return u, nil
}

// End sends SIGTERM, and returns an error unless the process ends within a time with status 0.
func (u *Unread) End(within time.Duration) error {
	if err := u.command.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-u.ended:
		return err
	case <-time.After(within):
		return fmt.Errorf("it does not end within %v of SIGTERM", within)
	}
}

// Close kills the process if it runs.
func (u *Unread) Close() {
	_ = u.command.Process.Kill() // it may have ended
	u.pipe.Close()
}
