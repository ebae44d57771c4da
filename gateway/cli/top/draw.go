package top

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gdamore/tcell/v2"

	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/internal/table"
)

// The lines of the screen; rows follow, and the last line has hints or a problem.
const (
	headAt = iota
	tabsAt
	pathAt
	columnsAt
	rowsAt
)

// Styles. Each differs from the others without colours, too.
var (
	plain    = tcell.StyleDefault
	bold     = plain.Bold(true)
	chosen   = plain.Reverse(true)
	heading  = plain.Bold(true).Underline(true)
	alarming = plain.Foreground(tcell.ColorRed).Bold(true)
)

// Draw draws the model.
func (m *Model) Draw(s tcell.Screen) {
	s.Clear()
	width, height := s.Size()
	m.drawHead(s, width)
	m.drawTabs(s, width)
	if m.help {
		for i, line := range strings.Split(helpText, "\n") {
			put(s, 2, pathAt+1+i, width-2, line, plain)
		}
	} else {
		m.drawRows(s, width, height)
	}
	m.drawLast(s, width, height-1)
	s.Show()
}

// put writes a text, cut to a width, and returns the column behind it.
func put(s tcell.Screen, x, y, width int, text string, style tcell.Style) int {
	for _, r := range table.Cut(objects.Printable(text), max(0, width)) {
		s.SetContent(x, y, r, nil, style)
		x++
	}
	return x
}

func (m *Model) drawHead(s tcell.Screen, width int) {
	state := "each " + m.every.String()
	if _, wait := m.Feed(); wait > m.every {
		state = fmt.Sprintf("each %v: an answer takes %v", wait.Round(100*time.Millisecond),
			m.took.Round(time.Millisecond))
	}
	if m.paused {
		state = "PAUSED"
	}
	if !m.at.IsZero() {
		state = m.at.Format(time.TimeOnly) + "  " + state
	}
	right := max(0, width-utf8.RuneCountInString(state))
	style := bold
	if m.head.Urgent {
		style = alarming
	}
	put(s, 0, headAt, right-1, cmp.Or(m.head.Text, "sluice top"), style)
	put(s, right, headAt, width-right, state, bold)
}

func (m *Model) drawTabs(s tcell.Screen, width int) {
	m.tabs = m.tabs[:0]
	x := 0
	for i, name := range m.tabNames() {
		style := plain
		if name == m.views[0].screen.Name {
			style = chosen
		}
		end := put(s, x, tabsAt, width-x, " "+strconv.Itoa(i+1)+" "+name+" ", style)
		m.tabs = append(m.tabs, span{x, end, name})
		x = end + 1
	}
}

// path names the open screens, the order and the filter.
func (m *Model) path(g Grid) string {
	var parts []string
	for _, v := range m.views {
		part := v.screen.Name
		if v.scope != "" {
			part += " of " + v.scope
		}
		parts = append(parts, part)
	}
	v := m.view()
	text := strings.Join(parts, " > ")
	if v.order.Sort != "" {
		text += ", by " + v.order.Sort
	}
	if v.order.Reverse {
		text += ", reversed"
	}
	if v.order.Filter != "" || m.typing {
		text += fmt.Sprintf(", %d of %d with /%s", len(g.Keys), g.All, v.order.Filter)
	} else if g.Known {
		text += ": " + strconv.Itoa(g.All)
	}
	if m.typing {
		text += "_"
	}
	if g.Note != "" {
		text += "; " + g.Note
	}
	return text
}

func (m *Model) drawRows(s tcell.Screen, width, height int) {
	v := m.view()
	g := v.feed.Grid(v.order)
	put(s, 0, pathAt, width, m.path(g), plain)
	m.height = max(0, height-rowsAt-1)
	selected := max(0, slices.Index(g.Keys, v.selected))
	v.first = min(max(0, v.first, selected-m.height+1), selected)
	last := min(len(g.Keys), v.first+m.height)
	m.rows = max(0, last-v.first)
	// Widths are of the rows on the screen, and the head.
	page := append([][]string{g.Cells[0]}, g.Cells[1+v.first:1+max(last, v.first)]...)
	widths := table.Widths(page, width)
	m.columns = m.columns[:0]
	for i, line := range page {
		x, y := 0, columnsAt+i
		style := plain
		switch row := v.first + i - 1; {
		case i == 0:
			style = heading
		case row == selected:
			style = chosen
			put(s, 0, y, width, strings.Repeat(" ", width), style)
		case g.Urgent[row]:
			style = alarming
		}
		for j, cell := range line {
			of := style
			if i == 0 && g.Names[j] == v.order.Sort {
				of = heading.Reverse(true)
			}
			put(s, x, y, min(widths[j], width-x), cell, of)
			if i == 0 {
				m.columns = append(m.columns, span{x, x + widths[j], g.Names[j]})
			}
			x += widths[j] + 2
		}
	}
	if len(g.Keys) == 0 {
		text := "Nothing to show."
		switch {
		case !g.Known && m.problem == "":
			text = "Waiting for an answer."
		case !g.Known:
			text = ""
		case g.All > 0:
			text = "No row contains " + v.order.Filter + "."
		}
		put(s, 0, rowsAt, width, text, plain)
	}
}

func (m *Model) drawLast(s tcell.Screen, width, y int) {
	if m.problem != "" {
		put(s, 0, y, width, m.problem, alarming)
		return
	}
	hints := "q quit  ? help  / filter  s sort  r reverse  p pause  w wide"
	if m.view().screen.Enter != nil {
		hints += "  Enter open"
	}
	if len(m.views) > 1 {
		hints += "  Esc back"
	}
	if m.typing {
		hints = "type a part of a cell; Enter keeps the filter, Esc removes it"
	}
	put(s, 0, y, width, hints, plain)
}

const helpText = `1 2 3 ... Tab    another screen
Up Down j k      another row; also PgUp PgDn Home End and the wheel
Enter Right      open the row: a Service's backends, a backend's or client's
                 flows; also a second click on it
Esc Left         back; removes the filter first
s S              sort by the next or previous column; also a click on its head
r                the reverse order
/                only rows with a text in a cell
w                all columns
p Space          pause, and go on
q Ctrl-C         quit

Counters are per second, between the last two answers. Rows in bold (red)
need attention. Only the list on the screen is read from the gateway.

Any key closes this page.`
