package topo

import (
	"testing"
)

func TestDirectRefuses(t *testing.T) {
	for _, c := range []Config{{Direct: true, Clients: 2}, {Direct: true, OneArmed: true}} {
		if n, err := New(c); err == nil {
			n.Close()
			t.Errorf("%+v: no error", c)
		}
	}
}
