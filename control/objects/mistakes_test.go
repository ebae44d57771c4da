package objects

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"sluice.dev/sluice/test/bed/pagetest"
)

var update = flag.Bool("update", false, "rewrite testdata/mistakes.md")

// TestCheckMistakes: testdata/mistakes.md has the messages about mistakes in the annotation.
func TestCheckMistakes(t *testing.T) {
	var b strings.Builder
	b.WriteString("\n| annotation | message |\n| --- | --- |\n")
	for _, text := range []string{
		"ping",
		"tcp http",
		"tcp interval=500ms",
		"tcp interval=1s timeout=2s",
		"tcp fall=0",
		"tcp interval=1s inter=2s",
		"tcp path=/healthz",
		"http path=healthz",
		"http method=DELETE",
		"http expect=99",
		"udp send=0xz",
		"dns name=a..b",
	} {
		checks, err := ParseChecks(text)
		if err == nil {
			t.Errorf("%q is %+v", text, checks)
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", text, err)
	}
	b.WriteString("\n")
	const how = "go test ./control/objects -run TestCheckMistakes -update"
	pagetest.Keep(t, "testdata/mistakes.md", "<!-- Table of mistakes: "+how+" -->\n", "<!-- end of the table -->\n",
		b.String(), *update, how)
}
