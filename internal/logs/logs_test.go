package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"unicode"
)

type stringer string

func (s stringer) String() string { return "Service " + string(s) }

// TestLogIsPrintable: text of objects in a log can neither control a terminal nor forge a line,
// whether it comes as text, error or Stringer, in both formats.
func TestLogIsPrintable(t *testing.T) {
	const hostile = "a\x1b[2J\x07\r\nlevel=ERROR msg=forged\x00\x7f\u009b31m\u202e\u2028\xff\U000e0001z"
	for _, format := range []string{Text, JSON} {
		var out bytes.Buffer
		log := slog.New(NewHandler(&out, format, slog.LevelInfo))
		log.With("with", hostile).Warn(hostile, "text", hostile, "error", errors.New(hostile),
			"stringer", stringer(hostile), slog.Group("group", "in", hostile))
		text := strings.TrimSuffix(out.String(), "\n")
		for _, r := range text {
			if !unicode.IsPrint(r) {
				t.Errorf("%s: %U in %q", format, r, text)
			}
		}
		if format != JSON {
			continue
		}
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if got := line["text"].(string); !strings.HasPrefix(got, "a\x1b[2J\x07\r\nlevel=ERROR") ||
			!strings.Contains(got, `\u009b31m\u202e`) || !strings.HasSuffix(got, `\U000e0001z`) {
			t.Errorf("%q", got)
		}
	}
}

// TestFormats: New accepts two formats.
func TestFormats(t *testing.T) {
	for format, good := range map[string]bool{Text: true, JSON: true, "xml": false, "": false} {
		if log, err := New(format); (err == nil) != good || (log != nil) != good {
			t.Errorf("%q: %v", format, err)
		}
	}
}
