package results

import (
	"strings"
	"testing"
)

func TestMarkdown(t *testing.T) {
	var b strings.Builder
	if err := Markdown(&b, [][]string{{"", "sluice"}, {"failed", "0"}, {"took", "11.20 s"}}); err != nil {
		t.Fatal(err)
	}
	want := "|        | sluice  |\n| ---    | ---     |\n| failed | 0       |\n| took   | 11.20 s |\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
