package compiler_test

import (
	"slices"
	"testing"

	"sluice.dev/sluice/control/compiler"
	"sluice.dev/sluice/nat/header"
)

// TestSetDrains: the drains of a predecessor hold for backends that come later, and replace others.
func TestSetDrains(t *testing.T) {
	of := func(last byte) header.Addr { return header.AddrFrom4([4]byte{10, 0, 0, last}) }
	c := compiler.New(compiler.Config{})
	first := []compiler.Drain{{Addr: of(1)}, {Addr: of(1), Port: 80}, {Addr: of(2), Port: 8080}}
	c.SetDrains([]compiler.Drain{first[2], first[1], first[0]})
	if got := c.Drains(); !slices.Equal(got, first) {
		t.Errorf("drains are %v, want %v in order", got, first)
	}
	c.SetDrains([]compiler.Drain{{Addr: of(3)}})
	if err := c.Undrain(first[0]); err == nil {
		t.Error("a drain that was replaced is in force")
	}
	if err := c.Undrain(compiler.Drain{Addr: of(3)}); err != nil || len(c.Drains()) > 0 {
		t.Errorf("%v, left %v", err, c.Drains())
	}
}
