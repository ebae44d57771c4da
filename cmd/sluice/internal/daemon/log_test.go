package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"unicode"

	"sluice.dev/sluice/control/config"
	"sluice.dev/sluice/control/objects"
)

// TestLogIsPrintable: text of objects in a log can neither control a terminal nor forge a line, as
// text, error or Stringer, in both formats.
func TestLogIsPrintable(t *testing.T) {
	const hostile = "a\x1b[2J\x07\r\nlevel=ERROR msg=forged\x00\x7f\u009b31m\u202e\u2028\xff\U000e0001z"
	for _, format := range []config.LogFormat{config.LogText, config.LogJSON} {
		var out bytes.Buffer
		log := slog.New(newHandler(&out, format, slog.LevelInfo))
		log.With("with", hostile).Warn(hostile, "text", hostile, "error", errors.New(hostile),
			"stringer", objects.ObjectID{Kind: "Service", Name: hostile}, slog.Group("group", "in", hostile))
		text := strings.TrimSuffix(out.String(), "\n")
		for _, r := range text {
			if !unicode.IsPrint(r) {
				t.Errorf("%s: %U in %q", format, r, text)
			}
		}
		if format != config.LogJSON {
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
