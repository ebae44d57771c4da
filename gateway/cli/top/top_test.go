package top

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gdamore/tcell/v2"

	"sluice.dev/sluice/internal/table"
)

// service is a row of the tests.
type service struct {
	name    string
	down    bool
	packets uint64
}

// gateway is what feeds of the tests ask. Its clock is a field.
type gateway struct {
	now      time.Time
	services []service
	err      error
	scopes   []string // of opened feeds
}

func (g *gateway) clock() time.Time { return g.now }

func (g *gateway) screens() []Screen {
	t := &table.Table[service]{
		Key:    func(s *service) string { return s.name },
		Urgent: func(s *service) bool { return s.down },
		Columns: []table.Column[service]{
			{Name: "NAME", Text: func(s *service) string { return s.name }},
			{Name: "PACKETS", Counter: func(s *service) *uint64 { return &s.packets }},
			{Name: "DOWN", Show: table.Wide, Text: func(s *service) string { return fmt.Sprint(s.down) }},
		},
	}
	open := func(scope string) Feed {
		g.scopes = append(g.scopes, scope)
		return NewFeed(t, g.clock, func(context.Context) (Answer[service], error) {
			return Answer[service]{Rows: g.services}, g.err
		})
	}
	return []Screen{
		{Name: "Services", Open: open, Enter: func(key string) (string, string) { return "Backends", key }},
		{Name: "Backends", Open: open},
		{Name: "Flows", Open: open, Hidden: true},
	}
}

// bench is a model beside a gateway and a terminal.
type bench struct {
	*Model
	*gateway
	t      *testing.T
	screen tcell.SimulationScreen
}

func newBench(t *testing.T, width, height int) *bench {
	g := &gateway{now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), services: []service{
		{"shop/web", false, 1000}, {"shop/api", true, 10}, {"dns", false, 500}}}
	s := tcell.NewSimulationScreen("UTF-8")
	if err := s.Init(); err != nil {
		t.Fatal(err)
	}
	s.SetSize(width, height)
	t.Cleanup(s.Fini)
	b := &bench{NewModel(g.screens(), time.Second), g, t, s}
	b.SetHead(Head{Text: "gw-1 v1, ready"})
	b.answer(0)
	return b
}

// answer reads what the model wants to be read, after a time.
func (b *bench) answer(after time.Duration) {
	b.now = b.now.Add(after)
	f, _ := b.Feed()
	if f == nil {
		return
	}
	apply, err := f.Read(b.t.Context())
	b.Answer(f, apply, err, b.now, 2*time.Millisecond)
}

// text draws, and returns the lines of the terminal.
func (b *bench) text() []string {
	b.Draw(b.screen)
	cells, width, height := b.screen.GetContents()
	lines := make([]string, height)
	for y := range lines {
		var line strings.Builder
		for x := range width {
			line.WriteString(string(cells[y*width+x].Runes))
		}
		lines[y] = strings.TrimRight(line.String(), " ")
	}
	return lines
}

func (b *bench) names() string {
	var names []string
	for _, line := range b.view().feed.Grid(b.view().order).Cells[1:] {
		names = append(names, line[0])
	}
	return strings.Join(names, " ")
}

// press presses keys: letters, or names in <>.
func (b *bench) press(keys string) {
	named := map[string]tcell.Key{"enter": tcell.KeyEnter, "esc": tcell.KeyEscape, "tab": tcell.KeyTab,
		"backtab": tcell.KeyBacktab, "down": tcell.KeyDown, "up": tcell.KeyUp, "end": tcell.KeyEnd,
		"home": tcell.KeyHome, "pgdn": tcell.KeyPgDn, "pgup": tcell.KeyPgUp, "back": tcell.KeyBackspace2,
		"ctrl-c": tcell.KeyCtrlC}
	for keys != "" {
		if name, rest, found := strings.Cut(strings.TrimPrefix(keys, "<"), ">"); found && keys[0] == '<' {
			b.Key(tcell.NewEventKey(named[name], 0, tcell.ModNone))
			keys = rest
			continue
		}
		b.Key(tcell.NewEventKey(tcell.KeyRune, rune(keys[0]), tcell.ModNone))
		keys = keys[1:]
	}
}

func (b *bench) click(x, y int, buttons tcell.ButtonMask) {
	b.Draw(b.screen)
	b.Mouse(tcell.NewEventMouse(x, y, buttons, tcell.ModNone))
}

// style returns the attributes of a cell.
func (b *bench) style(x, y int) (tcell.Color, tcell.AttrMask) {
	b.Draw(b.screen)
	_, style, _ := b.screen.Get(x, y)
	color, _, attributes := style.Decompose()
	return color, attributes
}

// TestRatesBetweenAnswers: counters are per second, and unknown after the first answer.
func TestRatesBetweenAnswers(t *testing.T) {
	b := newBench(t, 80, 24)
	lines := b.text()
	if !strings.HasPrefix(lines[columnsAt], "NAME      PACKETS/s") || lines[rowsAt] != "shop/api  -" {
		t.Errorf("after one answer:\n%s", strings.Join(lines, "\n"))
	}
	b.services = []service{{"shop/web", false, 5000}, {"shop/api", true, 10}, {"dns", false, 501}}
	b.answer(2 * time.Second)
	want := []string{"shop/api  0", "shop/web  2000", "dns       1"}
	for i, line := range b.text()[rowsAt : rowsAt+3] {
		if line != want[i] {
			t.Errorf("row %d is %q, want %q", i, line, want[i])
		}
	}
}

// TestSortFilterReverse: rows with what needs attention come first; then by each column.
func TestSortFilterReverse(t *testing.T) {
	b := newBench(t, 80, 24)
	for _, c := range []struct{ keys, want string }{
		{"", "shop/api shop/web dns"},
		{"s", "dns shop/api shop/web"},
		{"s", "shop/web dns shop/api"}, // one answer: by the counters
		{"r", "shop/api dns shop/web"},
		{"S", "dns shop/api shop/web"},
		{"<", "shop/api shop/web dns"},
		{"/WEB", "shop/web"},
		{"<back><back><back>dn<enter>", "dns"},
		{"sq", "dns"},
		{"<esc>", "dns shop/api shop/web"},
		{"/none", ""},
		{"<esc>", "dns shop/api shop/web"},
	} {
		b.press(c.keys)
		if got := b.names(); got != c.want {
			t.Errorf("after %q: %s, want %s", c.keys, got, c.want)
		}
	}
	if !b.Quit() {
		t.Error("q has not left")
	}
}

// TestDrillDown: Enter opens what is behind the selected row, which stays selected when rows move;
// Esc goes back. Numbers and Tab show the other screens.
func TestDrillDown(t *testing.T) {
	b := newBench(t, 80, 24)
	b.press("<down>")
	b.services = []service{{"shop/new", true, 0}, {"dns", false, 500}, {"shop/web", false, 1000}}
	b.answer(time.Second)
	b.press("<enter>")
	if got := b.scopes[len(b.scopes)-1]; got != "shop/web" {
		t.Errorf("opened %q", got)
	}
	if path := b.text()[pathAt]; path != "Services > Backends of shop/web" {
		t.Errorf("path is %q", path)
	}
	b.press("<enter>") // nothing is behind
	b.answer(0)
	if path := b.text()[pathAt]; path != "Services > Backends of shop/web: 3" {
		t.Errorf("path is %q", path)
	}
	b.press("<esc><esc>")
	if path := b.text()[pathAt]; path != "Services: 3" {
		t.Errorf("path is %q", path)
	}
	for keys, want := range map[string]string{"2": "Backends", "1": "Services", "<tab>": "Backends"} {
		b.press("1" + keys)
		if got := b.view().screen.Name; got != want {
			t.Errorf("%s shows %s", keys, got)
		}
	}
	b.press("1<backtab>")
	if got := b.view().screen.Name; got != "Backends" {
		t.Errorf("the last screen is %s: hidden ones count", got)
	}
	b.press("3")
	if got := b.view().screen.Name; got != "Backends" {
		t.Errorf("a hidden screen has a number: %s", got)
	}
}

// TestPause: nothing is read, and a late answer changes nothing.
func TestPause(t *testing.T) {
	b := newBench(t, 80, 24)
	f, _ := b.Feed()
	apply, _ := f.Read(t.Context())
	b.press("p")
	if f, _ := b.Feed(); f != nil {
		t.Error("a paused model reads")
	}
	b.services = nil
	b.Answer(f, apply, nil, b.now, time.Millisecond)
	if head := b.text()[headAt]; !strings.HasSuffix(head, "PAUSED") || b.names() == "" {
		t.Errorf("%q, %q", head, b.names())
	}
	b.press(" ")
	if b.answer(time.Second); b.names() != "" {
		t.Errorf("goes on with %q", b.names())
	}
}

// TestCost: a list is read again after 19 times as long as it took, and the first line says so.
func TestCost(t *testing.T) {
	b := newBench(t, 80, 24)
	f, wait := b.Feed()
	if wait != time.Second {
		t.Errorf("waits %v", wait)
	}
	b.Answer(f, func() {}, nil, b.now, 500*time.Millisecond)
	if _, wait := b.Feed(); wait != 9500*time.Millisecond {
		t.Errorf("waits %v", wait)
	}
	if head := b.text()[headAt]; !strings.HasSuffix(head, "each 9.5s: an answer takes 500ms") {
		t.Errorf("%q", head)
	}
}

// TestProblem: an error is on the last line, the last answer stays, and the next one ends it. The
// answer to a list that is not shown any more changes nothing.
func TestProblem(t *testing.T) {
	b := newBench(t, 80, 24)
	b.err = errors.New("the daemon\x1b[2J is away")
	b.answer(time.Second)
	if lines := b.text(); lines[23] != "the daemon [2J is away" || b.names() == "" {
		t.Errorf("%q", lines)
	}
	old, _ := b.Feed()
	b.press("2")
	b.Answer(old, nil, errors.New("late"), b.now, 0)
	if lines := b.text(); strings.Contains(lines[23], "late") || lines[rowsAt] != "Waiting for an answer." {
		t.Errorf("%q", lines)
	}
	b.err = nil
	b.answer(time.Second)
	if lines := b.text(); !strings.HasPrefix(lines[23], "q quit") {
		t.Errorf("%q", lines[23])
	}
}

// TestMouse: clicks on tabs, heads and rows, and the wheel.
func TestMouse(t *testing.T) {
	b := newBench(t, 80, 24)
	b.click(3, rowsAt+2, tcell.Button1)
	if got := b.view().selected; got != "dns" {
		t.Errorf("selected %q", got)
	}
	b.click(3, rowsAt, tcell.WheelUp)
	if got := b.view().selected; got != "shop/web" {
		t.Errorf("the wheel selected %q", got)
	}
	b.click(0, columnsAt, tcell.Button1)
	if got := b.names(); got != "dns shop/api shop/web" {
		t.Errorf("by name: %s", got)
	}
	b.click(0, columnsAt, tcell.Button1)
	if got := b.names(); got != "shop/web shop/api dns" {
		t.Errorf("by name, reversed: %s", got)
	}
	b.click(3, rowsAt, tcell.Button1) // the second one on this row
	if got := b.scopes[len(b.scopes)-1]; got != "shop/web" {
		t.Errorf("opened %q", got)
	}
	b.click(3, tabsAt, tcell.Button1)
	if got := b.text()[pathAt]; got != "Services" {
		t.Errorf("%q", got)
	}
	b.click(200, 200, tcell.Button1)
	b.click(0, rowsAt+9, tcell.Button1)
}

// TestDrawing: two sizes of the terminal, with more rows than it has lines. Nothing is lost at the
// right, and the selected row is on the screen.
func TestDrawing(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {120, 40}, {20, 4}, {1, 1}} {
		b := newBench(t, size[0], size[1])
		b.services = nil
		for i := range 100 {
			b.services = append(b.services, service{name: fmt.Sprintf("shop/%s-%03d", strings.Repeat("x", 90), i)})
		}
		b.answer(time.Second)
		for _, keys := range []string{"", "<end>", "<pgup>", "<pgup>", "<home>", "<down><pgdn>", "?", "?", "/x<enter>",
			"w"} {
			b.press(keys)
			lines := b.text()
			for _, line := range lines {
				if utf8.RuneCountInString(line) > size[0] {
					t.Errorf("%v: %q", size, line)
				}
			}
			if size[1] < 24 {
				continue
			}
			if keys == "?" {
				continue
			}
			selected := 0
			for y := rowsAt; y < size[1]-1; y++ {
				if _, attributes := b.style(0, y); attributes&tcell.AttrReverse != 0 {
					selected++
				}
			}
			if selected != 1 || !strings.HasPrefix(lines[rowsAt], "shop/") ||
				!strings.HasPrefix(lines[size[1]-2], "shop/") {
				t.Errorf("%v, %q: %d selected rows\n%s", size, keys, selected, strings.Join(lines, "\n"))
			}
			if size[0] == 80 && !strings.Contains(lines[columnsAt], "PACKETS/s") {
				t.Errorf("the long names push the rates out: %q", lines[columnsAt])
			}
		}
	}
}

// TestHelp: all of it fits 80 columns and 24 lines, and any key ends it.
func TestHelp(t *testing.T) {
	b := newBench(t, 80, 24)
	b.press("?")
	text := strings.Join(b.text(), "\n")
	for _, line := range strings.Split(helpText, "\n") {
		if !strings.Contains(text, line) {
			t.Errorf("the help lacks %q:\n%s", line, text)
		}
	}
	b.press("q")
	if b.Quit() || strings.Contains(strings.Join(b.text(), "\n"), "Ctrl-C") {
		t.Error("q has left instead of closing the help")
	}
	if b.press("<ctrl-c>"); !b.Quit() {
		t.Error("Ctrl-C has not left")
	}
}

// TestWithoutColours: what needs attention, the selection and the head differ by attributes alone.
func TestWithoutColours(t *testing.T) {
	b := newBench(t, 80, 24)
	b.press("<down>")
	color, urgent := b.style(0, rowsAt)
	_, selected := b.style(0, rowsAt+1)
	_, other := b.style(0, rowsAt+2)
	_, head := b.style(0, columnsAt)
	if color != tcell.ColorRed || urgent != tcell.AttrBold || selected != tcell.AttrReverse || other != 0 ||
		head == 0 || head == urgent || head == selected {
		t.Errorf("color %v; attributes: urgent %v, selected %v, other %v, head %v", color, urgent, selected, other,
			head)
	}
}

// TestRun: the loop reads the list that is shown, again and again, draws it, and ends with q.
func TestRun(t *testing.T) {
	b := newBench(t, 80, 24)
	reads := make(chan string, 100)
	screens := b.gateway.screens()
	for i := range screens {
		s, open := &screens[i], screens[i].Open
		s.Open = func(scope string) Feed { return reporting{open(scope), s.Name, reads} }
	}
	m := NewModel(screens, 5*time.Millisecond)
	done := make(chan error)
	go func() {
		done <- Run(t.Context(), b.screen, m, func(context.Context) (Head, error) { return Head{Text: "gw"}, nil })
	}()
	expect := func(name string) {
		t.Helper()
		for deadline := time.After(10 * time.Second); ; {
			select {
			case got := <-reads:
				if got == name {
					return
				}
			case <-deadline:
				t.Fatalf("%s was not read", name)
			}
		}
	}
	expect("Services")
	expect("Services")
	b.screen.InjectKey(tcell.KeyEnter, 0, tcell.ModNone)
	expect("Backends")
	expect("Backends")
	b.screen.InjectKey(tcell.KeyRune, 'q', tcell.ModNone)
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("q does not end it")
	}
}

// reporting reports what is read.
type reporting struct {
	Feed
	name  string
	reads chan string
}

func (r reporting) Read(ctx context.Context) (func(), error) {
	select {
	case r.reads <- r.name:
	default:
	}
	return r.Feed.Read(ctx)
}

// TestNoTerminal: a terminal that cannot place the cursor is refused, with what to do.
func TestNoTerminal(t *testing.T) {
	for _, term := range []string{"", "dumb", "no-such-terminal"} {
		t.Setenv("TERM", term)
		if s, err := NewTerminal(); err == nil || !strings.Contains(err.Error(), "xterm") {
			t.Errorf("TERM=%s: %v, %v", term, s, err)
		}
	}
}
