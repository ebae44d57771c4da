package objects

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"sluice.dev/sluice/nat/header"
)

func TestParseChecks(t *testing.T) {
	with := func(k CheckKind, change func(*Check)) PortCheck {
		c := Check{Kind: k, Interval: 5 * time.Second, Timeout: 3 * time.Second, Rise: 2, Fall: 3}
		if change != nil {
			change(&c)
		}
		return PortCheck{Check: c}
	}
	web := func(c *Check) { c.Method, c.Path, c.StatusMin, c.StatusMax = "GET", "/", 200, 399 }
	named := with(CheckDNS, func(c *Check) { c.Name, c.Type = "example.org.", 28 })
	named.Named, named.Port = true, "dns"
	for _, tt := range []struct {
		text string
		want Checks
	}{
		{"tcp", Checks{with(CheckTCP, nil)}},
		{" tcp ; ", Checks{with(CheckTCP, nil)}},
		{"none", Checks{{}}},
		{"tcp interval=1s", Checks{with(CheckTCP, func(c *Check) {
			c.Interval, c.Timeout = time.Second, 750*time.Millisecond
		})}},
		{"tcp inter=2s timeout=300ms rise=1 fall=10 slowstart=1m", Checks{with(CheckTCP, func(c *Check) {
			c.Interval, c.Timeout, c.Rise, c.Fall, c.SlowStart = 2*time.Second, 300*time.Millisecond, 1, 10, time.Minute
		})}},
		{"http", Checks{with(CheckHTTP, web)}},
		{"https path=/a?b=c host=shop.example.org:8443 method=HEAD expect=204", Checks{with(CheckHTTPS, func(c *Check) {
			c.Method, c.Path, c.Host, c.StatusMin, c.StatusMax = "HEAD", "/a?b=c", "shop.example.org:8443", 204, 204
		})}},
		{"grpc service=shop.Cart", Checks{with(CheckGRPC, func(c *Check) { c.Service = "shop.Cart" })}},
		{"udp send=0x0aFF require_reply", Checks{with(CheckUDP, func(c *Check) {
			c.Send, c.RequireReply = "\x0a\xff", true
		})}},
		{"dns", Checks{with(CheckDNS, func(c *Check) { c.Name, c.Type = ".", 6 })}},
		{"port=dns dns name=example.org type=aaaa; http", Checks{named, with(CheckHTTP, web)}},
	} {
		got, err := ParseChecks(tt.text)
		if err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%q: %v\n%s", tt.text, err, cmp.Diff(tt.want, got))
		}
	}
}

// TestBadChecks: what an annotation must not have, and what is said of it.
func TestBadChecks(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "has no check",
		"ping":                            `"ping" is no kind of check`,
		"interval=5s":                     `"" is no kind of check`,
		"tcp http":                        `"http" is neither FIELD=VALUE nor the kind`,
		"tcp interval=999ms":              "is no time from 1s to 1h0m0s",
		"tcp interval=2h":                 "is no time from 1s",
		"tcp interval=1s timeout=2s":      "is no time from 100ms to 1s",
		"tcp interval=10m timeout=10m":    "is no time from 100ms to 10s",
		"tcp timeout=1ms":                 "is no time from 100ms",
		"tcp slowstart=-1s":               "is no time from 0s",
		"tcp fall=0":                      "is no number from 1 to 10",
		"tcp rise=11":                     "is no number from 1 to 10",
		"tcp interval=1s inter=2s":        "interval is there twice",
		"tcp path=/":                      `tcp has no field "path"`,
		"none interval=5s":                `none has no field "interval"`,
		"http path=healthz":               "does not begin with a slash",
		"http path=/\r\nX-Evil:1":         "neither FIELD=VALUE",
		"http path=/\x01":                 "other characters than visible ASCII",
		"http path=/" + long(300):         "more than 256",
		"http host=a/b":                   "is no host name",
		"http method=DELETE":              "is none of GET",
		"http expect=99":                  "is no status code",
		"http expect=300-200":             "is no status code",
		"udp send=0xz":                    "is not hexadecimal",
		"udp send=" + long(600):           "more than 512",
		"dns name=a..b":                   "is no domain name",
		"dns type=ANY":                    "is none of A,",
		long(3000):                        "more than 2048",
		strings.Repeat("tcp;", 17):        "more than 16 checks",
		"tcp; http path=/ok; udp path=/x": `udp has no field "path"`,
	} {
		if got, err := ParseChecks(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, %v, want an error with %q", text, got, err, want)
		}
	}
}

func long(n int) string { return strings.Repeat("a", n) }

func TestChecksOf(t *testing.T) {
	checks, err := ParseChecks("port=admin none; port=web http path=/a; tcp; dns")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		port ServicePort
		kind CheckKind
		ok   bool
	}{
		{ServicePort{Name: "admin", Proto: header.ProtoTCP}, CheckNone, true},
		{ServicePort{Name: "web", Proto: header.ProtoTCP}, CheckHTTP, true},
		{ServicePort{Name: "web", Proto: header.ProtoUDP}, CheckDNS, true},
		{ServicePort{Name: "other", Proto: header.ProtoTCP}, CheckTCP, true},
		{ServicePort{Name: "other", Proto: header.ProtoSCTP}, CheckNone, false},
	} {
		if got, ok := checks.Of(&tt.port); got.Kind != tt.kind || ok != tt.ok {
			t.Errorf("%+v: %v, %v, want %v, %v", tt.port, got.Kind, ok, tt.kind, tt.ok)
		}
	}
}

// TestCheckAnnotation: an invalid annotation is a warning, and the configuration's checks hold.
func TestCheckAnnotation(t *testing.T) {
	var good, bad, none Service
	good.readChecks(map[string]string{annotationCheck: "tcp"})
	bad.readChecks(map[string]string{annotationCheck: "icmp"})
	none.readChecks(nil)
	if len(good.Checks) != 1 || len(good.Problems) > 0 {
		t.Errorf("good: %+v", good)
	}
	if bad.Checks != nil || len(bad.Problems) != 1 || bad.Problems[0].Severity != Warning {
		t.Errorf("bad: %+v", bad)
	}
	if none.Checks != nil || len(none.Problems) > 0 {
		t.Errorf("none: %+v", none)
	}
}

func FuzzParseChecks(f *testing.F) {
	f.Add("http path=/healthz interval=2s; port=dns dns name=example.org")
	f.Add("udp send=0x00 require_reply")
	f.Fuzz(func(t *testing.T, text string) {
		list, err := ParseChecks(text)
		if err != nil {
			return
		}
		for _, c := range list {
			k := &c.Check
			if k.Kind == CheckNone {
				continue
			}
			if k.Interval < minCheckInterval || k.Timeout < minCheckTimeout || k.Timeout > k.Interval || k.Rise == 0 ||
				k.Fall == 0 || len(k.Path) > maxCheckField || len(k.Send) > maxCheckSend {
				t.Errorf("%q: %+v is out of bounds", text, k)
			}
			if strings.ContainsFunc(k.Path+k.Host+k.Service, func(r rune) bool { return r <= ' ' || r > '~' }) {
				t.Errorf("%q: %+v has other characters than visible ASCII", text, k)
			}
		}
	})
}
