package ui

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/serve/status/statustest"
)

// views are the hashes and headings of all views, with a text that each shows of the sample.
var views = []struct{ hash, heading, shows string }{
	{"node", "Node", "Service default/old"},
	{"services", "Services", "default/web"},
	{"services/default/web/80/TCP", "default/web 80/TCP", "terminating, and others are ready"},
	{"flows", "Flows", "198.51.100.8"},
	{"flows/state=established", "Flows", "198.51.100.7:51000"},
	{"drops", "Drops", "source_range"},
	{"events", "Events", "interface lost"},
	{"explain", "Explain", "What would the gateway do"},
	{"explain/198.51.100.7/192.0.2.10%3A80/TCP", "Explain", "forwarded to 10.1.0.11:8080"},
}

// TestAccessible: axe finds nothing in any view, in light and dark, on a wide and on a narrow
// screen, and no view is wider than the screen.
func TestAccessible(t *testing.T) {
	address, _, _ := serve(t, newSample(), false)
	b := open(t, address)
	for _, scheme := range []string{"light", "dark"} {
		b.scheme(scheme)
		for _, width := range []int64{1280, 360} {
			b.size(width, 800)
			for _, v := range views {
				what := v.hash + ", " + scheme + ", " + strconv.FormatInt(width, 10) + " px"
				b.visit(v.hash, v.heading)
				b.shows("main", v.shows)
				if rules := b.axe(what); rules < 20 {
					t.Errorf("%s: axe applied %d rules only", what, rules)
				}
				if wide := js[int64](b, "document.documentElement.scrollWidth"); wide > width {
					t.Errorf("%s: the page is %d px wide", what, wide)
				}
			}
		}
		back := js[string](b, "getComputedStyle(document.documentElement).backgroundColor")
		if dark := back != "rgb(255, 255, 255)"; dark != (scheme == "dark") {
			t.Errorf("%s: the background is %s", scheme, back)
		}
	}
	b.press("?")
	b.shows("#help[open] h2", "Keys")
	b.axe("keys")
	if n := js[int](b, "document.getAnimations().length"); n != 0 {
		t.Errorf("%d animations with reduced motion", n)
	}
	b.own()
}

// own fails the test if the page asked another host, or had an error.
func (b *browser) own() {
	b.Helper()
	n := 0
	for _, r := range b.asked() {
		if n++; !strings.HasPrefix(r, b.url) && !strings.HasPrefix(r, "data:,") {
			b.Errorf("the page asks %s", r)
		}
	}
	if n < 8 {
		b.Errorf("only %d requests were seen", n)
	}
	for _, p := range b.clean() {
		b.Errorf("an error in the page: %s", p)
	}
}

// hostileExplain has hostile texts in the path of a packet.
type hostileExplain struct{ *sample }

// Explain implements status.Gateway.
func (g hostileExplain) Explain(q *status.ExplainQuery) (status.ExplainView, error) {
	v, err := g.sample.Explain(q)
	v.Steps[0].Name, v.Steps[0].Text, v.Endpoints[0].Why = hostile, hostile, hostile
	v.Advice, v.Service = hostile, hostile
	return v, err
}

// TestHostileNames: names, messages and annotations of tenants are shown as texts.
func TestHostileNames(t *testing.T) {
	g := newSample()
	web := &g.ServiceList[0]
	web.Namespace, web.Name, web.PortName = web.Namespace+hostile, web.Name+hostile, hostile
	for i := range g.BackendList {
		v := &g.BackendList[i]
		v.Namespace, v.Service, v.PortName, v.Why, v.NextHop = web.Namespace, web.Name, hostile, hostile, hostile
	}
	g.StatusView.Node, g.StatusView.Config.Error = hostile, hostile
	g.StatusView.Problems = []status.ProblemView{{Source: hostile, Object: hostile, Message: hostile}}
	g.StatusView.Conditions = []status.ConditionView{{Name: hostile, Level: "fail", Detail: hostile}}
	g.DropsView.Drops[0].Reason, g.DropsView.Drops[0].Service = hostile, hostile
	g.StatsView.Workers[0].Drops = map[string]uint64{hostile: 7}
	g.EachFlow(func(_ int, v *status.FlowView) { v.Service = hostile })
	g.Add(status.EventView{Time: statustest.Start().Add(2 * time.Hour), Level: "WARN", Message: hostile,
		Details: map[string]string{hostile: hostile}})
	address, _, _ := serve(t, hostileExplain{g}, false)
	b := open(t, address)
	b.shows("#node", hostileShown)
	b.shows("#attention", hostileShown)
	b.shows("main", hostileShown)
	b.visit("services", "Services")
	b.shows("main td", hostileShown)
	js[bool](b, `[...document.querySelectorAll('main tbody a')].find((a) => a.textContent.includes('owned'))
		.click() ?? true`)
	b.shows("main h1", hostileShown)
	b.shows("main td.long", hostileShown)
	b.visit("drops", "Drops")
	b.shows("main th", hostileShown)
	b.visit("flows", "Flows")
	b.shows("main td", hostileShown)
	b.visit("events", "Events")
	b.shows("main td", hostileShown)
	b.visit("explain/198.51.100.7/192.0.2.10%3A80/TCP", "Explain")
	b.shows("main ol li", hostileShown)
	if js[bool](b, "Boolean(window.owned) || document.querySelector('img, script:not([src]), main script') !== null") {
		t.Error("a name became an element or ran")
	}
	if left := js[bool](b, `/[\u202e\u001b\u0000]/.test(document.body.innerText + document.title)`); left {
		t.Error("a character that reorders or hides text is shown")
	}
	b.own()
}

// TestKeyboard walks through every view without a mouse.
func TestKeyboard(t *testing.T) {
	address, _, _ := serve(t, newSample(), false)
	b := open(t, address)
	focused := func(selector string) {
		t.Helper()
		b.eventually(selector+" has the focus", "document.activeElement.matches($1)", selector)
	}
	ring := func(what string) {
		t.Helper()
		if width := js[string](b, "getComputedStyle(document.activeElement).outlineWidth"); width != "3px" {
			t.Errorf("%s: the focus is not visible: outline %s", what, width)
		}
	}
	b.press(kb.Tab)
	focused("a.skip")
	ring("skip link")
	b.press(kb.Enter)
	focused("main")

	b.press("2")
	b.shows("main h1", "Services")
	focused("h1")
	b.press("/")
	focused("input[type=search]")
	ring("filter")
	b.press("dns")
	b.eventually("one row is left", "document.querySelectorAll('main tbody tr').length === 1")
	b.press("3") // a digit in a field is text
	b.shows("main h1", "Services")
	b.press(kb.Escape)
	js[bool](b, `((f) => { f.value = ''; return f.dispatchEvent(new Event('input')); })(document.querySelector('[data-filter]'))`)

	js[bool](b, "document.querySelector('thead button').focus() ?? true")
	ring("head of a column")
	b.press(kb.Enter)
	b.eventually("sorted", "document.querySelector('thead th').getAttribute('aria-sort') === 'ascending'")
	b.press(kb.Enter)
	b.eventually("reversed", "document.querySelector('thead th').getAttribute('aria-sort') === 'descending' && "+
		"document.querySelector('tbody th').textContent === 'kube-system/dns'")
	for range 30 { // from the head to the first link of the table
		b.press(kb.Tab)
		if js[bool](b, "document.activeElement.matches('tbody a')") {
			break
		}
	}
	focused("tbody a")
	name := js[string](b, "document.activeElement.textContent")
	time.Sleep(2500 * time.Millisecond) // two answers
	focused("tbody a")                  // which do not take the focus
	b.press(kb.Enter)
	b.shows("main h1", name)
	b.press(kb.Escape)
	b.shows("main h1", "Services")

	b.press("?")
	b.shows("#help[open] dt", "?")
	b.press(kb.Escape)
	b.eventually("the keys are closed", "!document.querySelector('#help').open")
	for i, v := range []string{"Node", "Services", "Flows", "Drops", "Events", "Explain"} {
		b.press(strconv.Itoa(i + 1))
		b.shows("main h1", v)
	}
	js[bool](b, "(document.querySelector('#keys-on').checked = false) || true")
	b.press("1")
	time.Sleep(300 * time.Millisecond)
	b.shows("main h1", "Explain")
	b.own()
}

// TestPause: a paused page, and a hidden one, ask nothing.
func TestPause(t *testing.T) {
	address, _, _ := serve(t, newSample(), false)
	b := open(t, address)
	b.shows("#sampled", "read at")
	quiet := func(what string) {
		t.Helper()
		time.Sleep(1500 * time.Millisecond) // the last request
		b.asked()
		time.Sleep(6 * time.Second)
		if list := b.asked(); len(list) > 0 {
			t.Errorf("%s: the page asks %v", what, list)
		}
	}
	goesOn := func() {
		t.Helper()
		time.Sleep(2500 * time.Millisecond)
		if len(b.asked()) == 0 {
			t.Error("the page does not go on")
		}
	}
	b.press("p")
	b.eventually("paused", "document.querySelector('#pause').getAttribute('aria-pressed') === 'true'")
	quiet("paused")
	b.press("p")
	goesOn()
	hide := `Object.defineProperty(document, 'hidden', {value: $1, configurable: true}) &&
		document.dispatchEvent(new Event('visibilitychange'))`
	js[bool](b, hide, true)
	quiet("hidden")
	js[bool](b, hide, false)
	goesOn()
}

// TestGatewayGone: the page says that the gateway does not answer, keeps what it shows, and goes on
// when the gateway is there again.
func TestGatewayGone(t *testing.T) {
	address, stop, start := serve(t, newSample(), false)
	b := open(t, address)
	b.visit("services", "Services")
	b.shows("main tbody", "default/web")
	stop()
	b.shows("#problem:not([hidden])", "the sluice daemon is not running")
	b.shows("main tbody", "default/web")
	b.axe("without a gateway")
	start()
	b.eventually("the problem is over", "document.querySelector('#problem').hidden")
}

// row is a row of a table, by the names of its columns.
type row map[string]string

// rows returns the rows of the table with a caption that begins with a title.
func (b *browser) rows(title string) (list []row) {
	b.Helper()
	return js[[]row](b, `((table) => {
		const heads = [...table.tHead.rows[0].cells].map((c) => c.textContent);
		return [...table.tBodies[0].rows].map((r) => Object.fromEntries([...r.cells].map((c, i) => [heads[i], c.textContent])));
	})([...document.querySelectorAll('table')].find((t) => t.caption.textContent.startsWith($1)))`, title)
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.ReplaceAll(text, ",", ""), 10, 64)
	if err != nil {
		t.Error(err)
	}
	return n
}

// TestNumbers: the page shows the numbers of the status API.
func TestNumbers(t *testing.T) {
	g := newSample()
	address, _, _ := serve(t, g, false)
	b := open(t, address)
	b.visit("services", "Services")
	b.shows("main tbody", "default/web")
	for i, r := range b.rows("Service ports") {
		t.Logf("%v", r)
		if r["Service"] == "kube-system/dns" {
			continue // urgent, so it comes first
		}
		v := g.ServiceList[0]
		if r["Backends"] != "2/3" || number(t, r["Created"]) != v.Traffic.Flows || r["Scheduler"] != v.Scheduler {
			t.Errorf("row %d: %v, want %+v", i, r, v)
		}
	}
	b.visit("services/default/web/80/TCP", "default/web 80/TCP")
	b.shows("main tbody", "10.1.0.11:8080")
	want := map[string][2]string{
		"10.1.0.11:8080": {"in", "ready"}, "10.1.0.12:8080": {"out", "terminating, and others are ready"},
		"[2001:db8:1::11]:8080 (this node)": {"in, only from pods", "ready"},
	}
	list := b.rows("Backends")
	for _, r := range list {
		if w := want[r["Backend"]]; r["New flows?"] != w[0] || r["Why"] != w[1] {
			t.Errorf("%v, want %v", r, w)
		}
	}
	if len(list) != len(want) {
		t.Errorf("%d backends, want %d", len(list), len(want))
	}
	b.visit("drops", "Drops")
	b.shows("main tbody", "source_range")
	drops := b.rows("Drops")
	if len(drops) != 3 || number(t, drops[0]["Packets"]) != 12000 || drops[0]["Rate"] != "200 /s" ||
		!strings.Contains(drops[0]["The packet"], "loadBalancerSourceRanges") {
		t.Errorf("%v", drops)
	}
}

// TestScreenshots writes the pictures of docs/images (environment: IMAGES).
func TestScreenshots(t *testing.T) {
	dir := os.Getenv("IMAGES")
	if dir == "" {
		t.Skip("IMAGES is not set")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	address, _, _ := serve(t, newSample(), true)
	b := open(t, address)
	b.size(1100, 720)
	for _, s := range []struct {
		name, scheme, hash, heading string
		wait                        time.Duration
	}{
		{"ui-node", "light", "node", "Node", time.Minute},
		{"ui-explain", "light", "explain/198.51.100.7/192.0.2.10%3A80/TCP", "Explain", 3 * time.Second},
		{"ui-service", "dark", "services/default/web/80/TCP", "default/web 80/TCP", 3 * time.Second},
	} {
		b.scheme(s.scheme)
		b.visit(s.hash, s.heading)
		time.Sleep(s.wait)
		var picture []byte
		b.run(chromedp.CaptureScreenshot(&picture))
		if len(picture) > 150_000 {
			t.Errorf("%s has %d bytes", s.name, len(picture))
		}
		if err := os.WriteFile(filepath.Join(dir, s.name+".png"), picture, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
