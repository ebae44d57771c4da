package stateful

import (
	"errors"
	"testing"
)

// start runs an engine on a port until the test is over.
func start(t *testing.T, port Port, c Config) *driver {
	t.Helper()
	l, err := openLine(t.Context(), &port)
	if err != nil {
		t.Fatal(err)
	}
	e, err := l.engine(c)
	if err != nil {
		t.Fatal(errors.Join(err, l.close()))
	}
	d := drive(e)
	t.Cleanup(func() {
		d.end()
		if n := e.Frames(); n != lineFrames {
			t.Errorf("%d frames of %d", n, lineFrames)
		}
		if err := l.close(); err != nil {
			t.Error(err)
		}
	})
	return d
}
