// Package logs makes the loggers of Sluice's processes.
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

// New returns a logger on standard error, or an error if format is unknown.
func New(format string) (*slog.Logger, error) {
	if format != Text && format != JSON {
		return nil, fmt.Errorf("is %q: must be %s or %s", format, JSON, Text)
	}
	return slog.New(NewHandler(Stderr, format, slog.LevelInfo)), nil
}

// NewHandler returns a handler for a logger. Attributes contain text of objects, which anybody may
// have written. The text handler quotes unprintable characters. The JSON handler escapes only the
// characters that JSON requires, and the others would reach a reader's terminal: NewHandler escapes
// them. A Writer reports dropped lines in the same format.
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

// escaped writes as Go does the unprintable characters that the JSON handler does not escape:
// U+009B is \u009b.
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
