package ui

import (
	"regexp"
	"strings"
	"sync"

	"sluice.dev/sluice/docs"
)

// reasonView describes a reason for dropping a packet. Packet completes the sentence "the packet":
// "is shorter than its own headers claim".
type reasonView struct {
	Reason string `json:"reason"`
	Packet string `json:"packet"`
	Advice string `json:"advice"`
}

// reasons returns the meanings of the drop reasons, from docs/counters.md.
var reasons = sync.OnceValue(func() []reasonView { return reasonsOf(docs.Counters) })

var (
	code = regexp.MustCompile("`([^`]+)`")
	link = regexp.MustCompile(`\[([^\]]+)\]\([^)]*\)`)
)

// reasonsHead is the head of the table of reasons.
const reasonsHead = "| reason | the packet | what to do |"

// reasonsOf reads the rows of the table of reasons in a page: names in code, meaning, advice. A row
// may have several names.
func reasonsOf(page string) (list []reasonView) {
	plain := func(cell string) string {
		return strings.ReplaceAll(link.ReplaceAllString(strings.TrimSpace(cell), "$1"), "`", "")
	}
	_, table, _ := strings.Cut(page, "\n"+reasonsHead+"\n")
	for _, line := range strings.Split(table, "\n") {
		if !strings.HasPrefix(line, "|") {
			break // the end of the table
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) != 3 {
			continue
		}
		for _, name := range code.FindAllStringSubmatch(cells[0], -1) {
			list = append(list, reasonView{Reason: name[1], Packet: plain(cells[1]), Advice: plain(cells[2])})
		}
	}
	return list
}
