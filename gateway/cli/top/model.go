// Package top is the full-screen live view of a gateway: lists in screens, between which an
// operator moves by keys and mouse.
//
//	terminal ──events──▶ Model ◀──apply── Feed.Read ──▶ the gateway's socket
//	                       └──Draw──▶ terminal
//
// Run has the loop; a Model changes by its methods alone, which one goroutine calls, and knows
// neither a terminal nor a clock. Only the list that is shown is read, once in an interval, and the
// next request waits 19 times as long as the last one took: the gateway works on it for a twentieth
// of a CPU at most.
package top

import (
	"slices"
	"time"

	"github.com/gdamore/tcell/v2"
)

// Screen is a kind of list.
type Screen struct {
	Name string
	// Hidden screens are reached by Enter alone.
	Hidden bool
	// Sort is the column by which rows are sorted at first.
	Sort string
	// Open returns a feed of the rows that scope selects; "": all.
	Open func(scope string) Feed
	// Enter returns the screen behind a row, and its scope; an empty name if there is none.
	Enter func(key string) (screen, scope string)
}

// Head is the first line.
type Head struct {
	Text   string
	Urgent bool
}

// view is an open screen.
type view struct {
	screen   *Screen
	scope    string
	feed     Feed
	order    Order
	selected string // key of the selected row; "": the first
	first    int    // row at the top
}

// Model is the state of top.
type Model struct {
	screens []Screen
	views   []*view // the last is shown; Esc closes it
	every   time.Duration

	head    Head
	problem string // why the last request failed
	at      time.Time
	took    time.Duration // the last request

	paused, help, quit bool
	typing             bool // the filter
	height             int  // rows of a page, when it was drawn last
	rows               int  // on the screen when it was drawn last, from line rowsAt on
	tabs               []span
	columns            []span
}

// span is a part of a line that reacts to the mouse.
type span struct {
	from, to int
	name     string
}

// NewModel returns a model that shows the first screen, and reads it once in an interval.
func NewModel(screens []Screen, every time.Duration) *Model {
	m := &Model{screens: screens, every: every}
	m.open(&m.screens[0], "")
	return m
}

func (m *Model) view() *view { return m.views[len(m.views)-1] }

// open shows a screen above the others.
func (m *Model) open(s *Screen, scope string) {
	m.views = append(m.views, &view{screen: s, scope: scope, feed: s.Open(scope), order: Order{Sort: s.Sort}})
	m.problem, m.took = "", 0
}

// show shows a screen instead of all others.
func (m *Model) show(name string) {
	i := slices.IndexFunc(m.screens, func(s Screen) bool { return s.Name == name })
	m.views = nil
	m.open(&m.screens[i], "")
}

// tabNames lists the screens that are not hidden.
func (m *Model) tabNames() (names []string) {
	for i := range m.screens {
		if !m.screens[i].Hidden {
			names = append(names, m.screens[i].Name)
		}
	}
	return names
}

// next shows the screen that is so many after the first open one.
func (m *Model) next(step int) {
	names := m.tabNames()
	at := slices.Index(names, m.views[0].screen.Name)
	m.show(names[(at+step+len(names))%len(names)])
}

// Feed returns the feed to read, and the time from one reading to the next: the interval, or more
// if answers take long. It returns nil while the model is paused.
func (m *Model) Feed() (Feed, time.Duration) {
	if m.paused {
		return nil, 0
	}
	return m.view().feed, max(m.every, 19*m.took)
}

// Quit reports whether the operator has left.
func (m *Model) Quit() bool { return m.quit }

// Answer takes the result of reading a feed, which began at a time and took so long. The result of
// a feed that is not shown any more, or that came after the pause began, is dropped.
func (m *Model) Answer(f Feed, apply func(), err error, began time.Time, took time.Duration) {
	if f != m.view().feed || m.paused {
		return
	}
	m.at, m.took = began, took
	if m.problem = ""; err != nil {
		m.problem = err.Error()
		return
	}
	apply()
}

// SetHead sets the first line.
func (m *Model) SetHead(h Head) { m.head = h }

// Key handles a key.
func (m *Model) Key(e *tcell.EventKey) {
	switch {
	case e.Key() == tcell.KeyCtrlC:
		m.quit = true
	case m.help:
		m.help = false
	case m.typing:
		m.typeFilter(e)
	case e.Key() == tcell.KeyRune:
		m.command(e.Rune())
	default:
		m.move(e.Key())
	}
}

// typeFilter handles a key while the filter is typed.
func (m *Model) typeFilter(e *tcell.EventKey) {
	v := m.view()
	switch e.Key() {
	case tcell.KeyEnter:
		m.typing = false
	case tcell.KeyEscape:
		m.typing, v.order.Filter = false, ""
	case tcell.KeyBackspace, tcell.KeyBackspace2:
		if r := []rune(v.order.Filter); len(r) > 0 {
			v.order.Filter = string(r[:len(r)-1])
		}
	case tcell.KeyRune:
		v.order.Filter += string(e.Rune())
	default:
		m.move(e.Key())
	}
}

// command handles a letter.
func (m *Model) command(r rune) {
	v := m.view()
	switch r {
	case 'q':
		m.quit = true
	case '?', 'h':
		m.help = true
	case '/':
		m.typing = true
	case 'p', ' ':
		m.paused = !m.paused
	case 's', '>':
		m.sortBy(1)
	case 'S', '<':
		m.sortBy(-1)
	case 'r':
		v.order.Reverse = !v.order.Reverse
	case 'w':
		v.order.Wide = !v.order.Wide
	case 'j':
		m.move(tcell.KeyDown)
	case 'k':
		m.move(tcell.KeyUp)
	default:
		if names := m.tabNames(); r >= '1' && int(r-'1') < len(names) {
			m.show(names[r-'1'])
		}
	}
}

// sortBy sorts by a column that is so many after the present one. Before the first column is the
// order in which urgent rows come first.
func (m *Model) sortBy(step int) {
	v := m.view()
	names := append([]string{""}, v.feed.Columns()...)
	at := max(0, slices.Index(names, v.order.Sort))
	v.order.Sort, v.order.Reverse = names[(at+step+len(names))%len(names)], false
}

// move handles a key that is no letter.
func (m *Model) move(k tcell.Key) {
	switch k {
	case tcell.KeyEnter, tcell.KeyRight:
		m.enter()
	case tcell.KeyEscape, tcell.KeyLeft, tcell.KeyBackspace, tcell.KeyBackspace2:
		m.back()
	case tcell.KeyTab:
		m.next(1)
	case tcell.KeyBacktab:
		m.next(-1)
	case tcell.KeyUp:
		m.selectRow(-1)
	case tcell.KeyDown:
		m.selectRow(1)
	case tcell.KeyPgUp:
		m.selectRow(-max(1, m.height))
	case tcell.KeyPgDn:
		m.selectRow(max(1, m.height))
	case tcell.KeyHome:
		m.selectRow(-1 << 30)
	case tcell.KeyEnd:
		m.selectRow(1 << 30)
	}
}

// selectRow selects the row that is so many below the selected one.
func (m *Model) selectRow(step int) {
	v := m.view()
	keys := v.feed.Grid(v.order).Keys
	if len(keys) > 0 {
		v.selected = keys[min(max(0, max(0, slices.Index(keys, v.selected))+step), len(keys)-1)]
	}
}

// enter opens the screen behind the selected row.
func (m *Model) enter() {
	v := m.view()
	keys := v.feed.Grid(v.order).Keys
	if len(keys) == 0 || v.screen.Enter == nil {
		return
	}
	name, scope := v.screen.Enter(keys[max(0, slices.Index(keys, v.selected))])
	if i := slices.IndexFunc(m.screens, func(s Screen) bool { return s.Name == name }); i >= 0 {
		m.open(&m.screens[i], scope)
	}
}

// back clears the filter, or else closes the screen.
func (m *Model) back() {
	switch v := m.view(); {
	case v.order.Filter != "":
		v.order.Filter = ""
	case len(m.views) > 1:
		m.views = m.views[:len(m.views)-1]
		m.problem, m.took = "", 0
	}
}

// Mouse handles a click, or a turn of the wheel, at a place on the screen.
func (m *Model) Mouse(e *tcell.EventMouse) {
	x, y := e.Position()
	switch {
	case e.Buttons()&tcell.WheelUp != 0:
		m.selectRow(-1)
	case e.Buttons()&tcell.WheelDown != 0:
		m.selectRow(1)
	case e.Buttons()&tcell.Button1 == 0:
	case m.help:
		m.help = false
	case y == tabsAt:
		if name := at(m.tabs, x); name != "" {
			m.show(name)
		}
	case y == columnsAt:
		v := m.view()
		if name := at(m.columns, x); name == v.order.Sort {
			v.order.Reverse = !v.order.Reverse
		} else if name != "" {
			v.order.Sort, v.order.Reverse = name, false
		}
	case y >= rowsAt && y < rowsAt+m.rows:
		v := m.view()
		keys := v.feed.Grid(v.order).Keys
		i := v.first + y - rowsAt
		if i >= len(keys) {
			return
		}
		if keys[i] == v.selected {
			m.enter()
		} else {
			v.selected = keys[i]
		}
	}
}

// at returns the name of the span at a column; "" if there is none.
func at(list []span, x int) string {
	for _, s := range list {
		if x >= s.from && x < s.to {
			return s.name
		}
	}
	return ""
}
