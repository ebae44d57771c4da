package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// browser is a tab of a headless Chromium that shows the page.
type browser struct {
	*testing.T
	ctx context.Context
	url string

	mu       sync.Mutex
	requests []string // addresses
	problems []string // errors of scripts, violations of the policy, failed requests
}

// within bounds a wait for the page, which reads each second.
const within = 20 * time.Second

// open starts Chromium (environment: CHROMIUM) at a page.
func open(t *testing.T, url string) *browser {
	t.Helper()
	program := os.Getenv("CHROMIUM")
	if program == "" {
		t.Fatal("CHROMIUM is not set: `make -C test ui-test` runs this test")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		chromedp.NoSandbox, // which Chromium refuses to root
		chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("font-render-hinting", "none"),
		chromedp.WSURLReadTimeout(time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &browser{T: t, ctx: ctx, url: url}
	chromedp.ListenTarget(ctx, b.event)
	b.run(network.Enable(), log.Enable(), runtime.Enable())
	b.size(1280, 800)
	b.run(chromedp.Navigate(url))
	b.shows("main h1", "Node")
	return b
}

// event notes requests and errors.
func (b *browser) event(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, e.ExceptionDetails.Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError {
			b.problems = append(b.problems, e.Entry.Text+" "+e.Entry.URL)
		}
	}
}

// clean returns the errors since the last call.
func (b *browser) clean() (problems []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	problems, b.problems = b.problems, nil
	return problems
}

// asked returns the requests since the last call.
func (b *browser) asked() (requests []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	requests, b.requests = b.requests, nil
	return requests
}

func (b *browser) run(actions ...chromedp.Action) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if b.ctx.Err() == nil && chromedp.FromContext(b.ctx).Target == nil {
		ctx = b.ctx // the first action starts the program, whose life is that of its context
	}
	if err := chromedp.Run(ctx, actions...); err != nil {
		b.Fatalf("the browser: %v; the page: %s", err, b.problems)
	}
}

// js returns the value of an expression; promises are awaited.
func js[T any](b *browser, expression string, arguments ...any) (v T) {
	b.Helper()
	for i, a := range arguments {
		text, err := json.Marshal(a)
		if err != nil {
			b.Fatal(err)
		}
		expression = strings.ReplaceAll(expression, fmt.Sprintf("$%d", i+1), string(text))
	}
	b.run(chromedp.Evaluate(expression, &v, func(p *runtime.EvaluateParams) *runtime.EvaluateParams {
		return p.WithAwaitPromise(true)
	}))
	return v
}

// eventually waits until an expression is true.
func (b *browser) eventually(what, expression string, arguments ...any) {
	b.Helper()
	for end := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		if js[bool](b, "Boolean("+expression+")", arguments...) {
			return
		}
		if time.Now().After(end) {
			b.Fatalf("not within %v: %s; the page shows:\n%s", within, what, js[string](b, "document.body.innerText"))
		}
	}
}

// shows waits until an element's text contains a text.
func (b *browser) shows(selector, text string) {
	b.Helper()
	b.eventually(selector+" shows "+text,
		"[...document.querySelectorAll($1)].some((e) => e.textContent.includes($2))", selector, text)
}

// visit opens a view by its hash.
func (b *browser) visit(hash, heading string) {
	b.Helper()
	js[string](b, "location.hash = $1", hash)
	b.shows("main h1", heading)
	b.shows("#sampled", "read at")
}

// press types keys.
func (b *browser) press(keys string) {
	b.Helper()
	b.run(chromedp.KeyEvent(keys))
}

func (b *browser) size(width, height int64) {
	b.Helper()
	b.run(chromedp.EmulateViewport(width, height))
}

// scheme chooses between light and dark.
func (b *browser) scheme(name string) {
	b.Helper()
	b.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: name}, {Name: "prefers-reduced-motion", Value: "reduce"}}))
}

// violation is a rule of axe that an element breaks.
type violation struct {
	ID    string `json:"id"`
	Help  string `json:"help"`
	Nodes []struct {
		HTML    string `json:"html"`
		Summary string `json:"failureSummary"`
	} `json:"nodes"`
}

// axe fails the test for each violation that axe-core (environment: AXE) finds in the page.
func (b *browser) axe(what string) (rules int) {
	b.Helper()
	source, err := os.ReadFile(os.Getenv("AXE"))
	if err != nil {
		b.Fatalf("AXE is no axe.min.js of axe-core: %v; `make -C test ui-test` runs this test", err)
	}
	if !js[bool](b, "Boolean(window.axe)") {
		b.run(chromedp.Evaluate(string(source), nil))
	}
	found := js[struct {
		Violations []violation `json:"violations"`
		Passes     int         `json:"passes"`
	}](b, `axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})
		.then((r) => ({violations: r.violations, passes: r.passes.length}))`)
	for _, v := range found.Violations {
		for _, n := range v.Nodes {
			b.Errorf("%s: axe: %s (%s): %s\n%s", what, v.ID, v.Help, n.HTML, n.Summary)
		}
	}
	return found.Passes
}
