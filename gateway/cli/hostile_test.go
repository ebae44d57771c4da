package cli

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// hostileText clears the screen, sets a title, forges lines, and has U+009B (CSI), U+202E (right to
// left), NUL and bytes that are no UTF-8.
const hostileText = "a\x1b[2J\x1b]0;owned\x07\r\nforged line\tz\u009b31m\u202e\u2028\x00\xff\x7f"

// appendHostile appends hostileText to every string in v.
func appendHostile(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		if v.CanSet() {
			v.SetString(v.String() + hostileText)
		}
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			appendHostile(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			appendHostile(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			appendHostile(v.Index(i))
		}
	case reflect.Map:
		for _, k := range v.MapKeys() {
			if e := v.MapIndex(k); e.Kind() == reflect.String {
				v.SetMapIndex(k, reflect.ValueOf(e.String()+hostileText))
			}
		}
	}
}

// hostileGateway has hostileText in every string of what it shows.
type hostileGateway struct{ *statustest.Gateway }

func (g hostileGateway) Explain(q *status.ExplainQuery) (status.ExplainView, error) {
	v, err := g.Gateway.Explain(q)
	appendHostile(reflect.ValueOf(&v))
	return v, err
}

// TestTextOutputIsPrintable: no text of an object reaches the terminal as it is, in a table or an
// error.
func TestTextOutputIsPrintable(t *testing.T) {
	for _, args := range []string{"services", "backends", "flows", "status", "stats", "drain 10.1.0.11:8080",
		"undrain 10.1.0.11", "explain --from 198.51.100.7 --to 192.0.2.10:80", "fails",
		"explain --from 198.51.100.7 --to 192.0.2.10:80 --manifests x"} {
		g := hostileGateway{statustest.New()}
		for _, v := range []any{&g.ServiceList, &g.BackendList, &g.StatsView, &g.StatusView} {
			appendHostile(reflect.ValueOf(v))
		}
		want := exitOK
		switch {
		case args == "fails":
			args, want, g.Err = "drain 10.1.0.11:8080", exitFailure, errors.New(hostileText)
		case strings.Contains(args, "--manifests"):
			want = exitFailure
		}
		code, out, errs := sluiceWith(t, hostileOffline, append(strings.Fields(args), "--socket", daemon(t, g))...)
		if code != want {
			t.Errorf("%s: exit %d: %q", args, code, errs)
		}
		if !strings.Contains(out+errs, "owned") && !strings.HasPrefix(args, "flows") {
			t.Errorf("%s prints nothing of the text: %q", args, out+errs)
		}
		for _, line := range strings.Split(out+errs, "\n") {
			if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) ||
				strings.HasPrefix(line, "forged") && g.Err == nil { // errors have lines
				t.Errorf("%s: %q", args, line)
			}
		}
	}
}

// hostileOffline is what explain answers of manifests that it could not read all of.
func hostileOffline(
	context.Context, string, string, string, *status.ExplainQuery,
) (v status.ExplainView, err error) {
	v.Unread = []status.ProblemView{{Source: "s", Object: "o", Field: "f", Message: "m"}, {Source: "t", Message: "n"}}
	v.Steps = []status.ExplainStep{{Name: "frontend", Text: "none"}}
	appendHostile(reflect.ValueOf(&v))
	return v, nil
}
