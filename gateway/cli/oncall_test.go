package cli

import (
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestOncallCommands: every command and flag in the table of questions exists. The values of flags
// are parsed, too.
func TestOncallCommands(t *testing.T) {
	page, err := os.ReadFile("../../docs/oncall.md")
	if err != nil {
		t.Fatal(err)
	}
	commands := regexp.MustCompile("`sluice ([^`]+)`").FindAllStringSubmatch(string(page), -1)
	if len(commands) < 40 {
		t.Fatalf("only %d commands were found", len(commands))
	}
	for _, m := range commands {
		s := &session{app: &App{Out: io.Discard, Err: io.Discard}}
		c, args, err := s.root().Find(strings.Fields(m[1]))
		if err == nil {
			err = c.ParseFlags(args)
		}
		if err == nil {
			err = c.ValidateArgs(c.Flags().Args())
		}
		if err != nil || !c.HasParent() {
			t.Errorf("sluice %s: %v", m[1], err)
		}
	}
}
