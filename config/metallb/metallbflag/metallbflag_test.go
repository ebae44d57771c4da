package metallbflag

import "testing"

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		namespace string
		reads     bool
		want      string
		ok        bool
	}{
		{"m", true, "m", true}, {"m", false, "", true}, {"", false, "", true}, {"", true, "", false},
	} {
		got, err := Check(c.namespace, c.reads, "metallb-pools")
		if got != c.want || (err == nil) != c.ok {
			t.Errorf("%q, %v: %q, %v, want %q", c.namespace, c.reads, got, err, c.want)
		}
	}
}
