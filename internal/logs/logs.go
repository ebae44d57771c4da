// Package logs makes the logs of Sluice's processes.
package logs

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"unicode"
)

// Formats of a line.
const (
	Text = "text"
	JSON = "json"
)

// New returns a log on standard error, or an error if there is no such format.
func New(format string) (*slog.Logger, error) {
	if format != Text && format != JSON {
		return nil, fmt.Errorf("is %q: must be %s or %s", format, JSON, Text)
	}
	return slog.New(NewHandler(Stderr, format, slog.LevelInfo)), nil
}

// NewHandler returns the handler of a log. Attributes have text of objects, which anybody may have
// written. The text handler quotes what is not printable. The JSON handler escapes what JSON
// requires only, and a reader's terminal gets the rest: so that is escaped here. A Writer reports
// dropped lines in the same format.
func NewHandler(w io.Writer, format string, level slog.Leveler) slog.Handler {
	if w, ok := w.(*Writer); ok {
		w.setFormat(format)
	}
	options := &slog.HandlerOptions{Level: level}
	if format != JSON {
		return slog.NewTextHandler(w, options)
	}
	options.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
		switch v := a.Value; v.Kind() {
		case slog.KindString:
			a.Value = slog.StringValue(escaped(v.String()))
		case slog.KindAny:
			switch v := v.Any().(type) {
			case error:
				a.Value = slog.StringValue(escaped(v.Error()))
			case fmt.Stringer:
				a.Value = slog.StringValue(escaped(v.String()))
			}
		}
		return a
	}
	return slog.NewJSONHandler(w, options)
}

// escaped writes what neither is printable nor escaped by the JSON handler as Go does: U+009B is
// \u009b.
func escaped(s string) string {
	raw := func(r rune) bool { return r >= ' ' && !unicode.IsPrint(r) }
	if !strings.ContainsFunc(s, raw) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case raw(r) && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case raw(r):
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			b.WriteString(string(r))
		}
	}
	return b.String()
}
