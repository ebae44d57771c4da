package matrix

import (
	"slices"
	"strings"
	"testing"

	"sluice.dev/sluice/test/vm"
	"sluice.dev/sluice/test/vm/guest"
)

// TestRows: every row can be run, and no two have one name, by which logs are called.
func TestRows(t *testing.T) {
	for _, s := range Sets {
		rows, err := Rows(s)
		if err != nil || len(rows) == 0 {
			t.Fatalf("%s: %d rows, %v", s, len(rows), err)
		}
		names := map[string]bool{}
		for i := range rows {
			r := &rows[i]
			if names[r.String()] {
				t.Errorf("%s: two rows are called %q", s, r)
			}
			names[r.String()] = true
			if !slices.Contains(vm.Kernels, r.Kernel) {
				t.Errorf("%s: no kernel %q", r, r.Kernel)
			}
			if _, err := r.plug(); err != nil {
				t.Errorf("%s: %v", r, err)
			}
			if len(r.Command) == 0 && len(r.Cases) == 0 {
				t.Errorf("%s tries nothing", r)
			}
			for _, c := range r.Cases {
				if !guest.Known(c) {
					t.Errorf("%s: no case %q", r, c)
				}
				if c == "kill" && r.Kills == 0 || c == "upgrade" && r.TakeOvers == 0 ||
					strings.HasPrefix(c, "tcp") && r.Megabytes == 0 {
					t.Errorf("%s: case %s would do nothing", r, c)
				}
			}
		}
	}
	if _, err := Rows("none"); err == nil {
		t.Error("a set that there is not has rows")
	}
}

func TestExpected(t *testing.T) {
	for _, c := range []struct {
		model, release string
		row            Row
		want           guest.Mode
	}{
		{"igb", "7.3.4+deb13-amd64", Row{}, guest.ZeroCopy},
		{"igb", "6.14.0", Row{}, guest.ZeroCopy},
		{"igb", "6.13.9", Row{}, guest.Copy},
		{"igb", "6.12.95+deb12-amd64", Row{}, guest.Copy},
		{"virtio-net", "6.13.1", Row{}, guest.ZeroCopy},
		{"virtio-net", "6.12.95+deb12-amd64", Row{}, guest.Copy},
		{"vmxnet3", "7.3.4", Row{}, guest.Generic},
		{"e1000e", "7.3.4", Row{}, guest.Generic},
		{"e1000", "6.12.0", Row{}, guest.Generic},
		{"igb", "7.3.4", Row{MTU: 9000}, guest.Generic},
		{"virtio-net", "7.3.4", Row{MTU: 9000}, guest.Copy},
		{"virtio-net", "7.3.4", Row{VLAN: guest.Devices}, guest.Generic},
		{"igb", "7.3.4", Row{VLAN: guest.Gateway}, guest.ZeroCopy},
	} {
		if got := c.row.Expected(c.model, vm.Kernel{Release: c.release}); got != c.want {
			t.Errorf("%s on %s, %+v: %s, want %s", c.model, c.release, c.row, got, c.want)
		}
	}
}

func TestLines(t *testing.T) {
	var got []string
	l := &lines{each: func(b []byte) { got = append(got, string(b)) }}
	for _, part := range []string{"one\ntw", "o\n", "", "\nthree"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatalf("Write(%q): %d, %v", part, n, err)
		}
	}
	if want := []string{"one", "two", ""}; !slices.Equal(got, want) {
		t.Errorf("lines %q, want %q", got, want)
	}
}
