package machine

import (
	"errors"
	"os"
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
