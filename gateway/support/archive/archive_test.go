package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// unpack returns the files of an archive by name, and its index.
func unpack(t *testing.T, packed []byte) (files map[string]string, x Index) {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "sluice-support/")] = string(text)
	}
	if err := json.Unmarshal([]byte(files["index.json"]), &x); err != nil {
		t.Fatal(err)
	}
	return files, x
}

func text(s string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error { _, err := io.WriteString(w, s); return err }
}

// TestWrite: a part that fails, never ends or is too long is named in the index, and the parts
// after it are there.
func TestWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		var b bytes.Buffer
		_, err := Write(t.Context(), &b, []Part{
			{Name: "fails", Write: func(_ context.Context, w io.Writer) error {
				return errors.Join(text("a part of it")(t.Context(), w), errors.New("no such file"))
			}},
			{Name: "hangs", Write: func(context.Context, io.Writer) error { <-hangs; return nil }},
			{Name: "long", Write: text(strings.Repeat("x", maxPartBytes+1))},
			{Name: "last", Write: text("good")},
		}, "v1", nil)
		close(hangs)
		if err != nil {
			t.Fatal(err)
		}
		files, x := unpack(t, b.Bytes())
		if files["fails"] != "a part of it" || len(files["long"]) != maxPartBytes || files["last"] != "good" {
			t.Errorf("%d bytes of fails, %d of long, last %q", len(files["fails"]), len(files["long"]), files["last"])
		}
		want := []struct {
			failure   string
			truncated bool
		}{{"no such file", false}, {"not complete within 15s", false}, {"", true}, {"", false}}
		for i, e := range x.Parts {
			if e.Truncated != want[i].truncated || !strings.Contains(e.Error, want[i].failure) ||
				want[i].failure == "" && e.Error != "" {
				t.Errorf("%+v, want %+v", e, want[i])
			}
		}
		if len(x.Parts) != 4 || x.Version != "v1" {
			t.Errorf("%+v", x)
		}
	})
}

// TestWithoutAddresses: an address has one name in all parts and errors, and in all archives with
// one key. A part whose addresses cannot be replaced is left out.
func TestWithoutAddresses(t *testing.T) {
	var b bytes.Buffer
	names := NewNames("key")
	_, err := Write(t.Context(), &b, []Part{
		{Name: "a", Write: text(`{"client":"198.51.100.7:51000","vip":"[2001:db8::10]:80"}`)},
		{Name: "b", Write: text("10.1.0.0/24 via 198.51.100.7 lladdr 02:00:5e:10:00:01 at 08:00:30, " +
			"::ffff:198.51.100.7")},
		{Name: "c", Write: func(context.Context, io.Writer) error {
			return errors.New("dial 198.51.100.7:443: refused")
		}},
		{Name: "d", Write: text("node ip-198-51-100-7, listen 127.0.0.1:9470 and 0.0.0.0, [::]:80, " +
			"x:2001:DB8:0:0:0:0:0:10")},
		{Name: "maps", Addresses: true, Write: text("c6336407")},
	}, "v1", names)
	if err != nil {
		t.Fatal(err)
	}
	files, x := unpack(t, b.Bytes())
	same, other := NewNames(names.Key()), NewNames("")
	for address, name := range map[string]string{
		"198.51.100.7": "ipv4-1", "10.1.0.0": "ipv4-2", "2001:db8::10": "ipv6-1", "02:00:5e:10:00:01": "mac-1",
	} {
		keyed := same.name(address)
		if kind, _, _ := strings.Cut(name, "-"); !strings.HasPrefix(keyed, kind+"-") || keyed == other.name(address) {
			t.Errorf("%s is %s, and %s by another key", address, keyed, other.name(address))
		}
		for file := range files {
			files[file] = strings.ReplaceAll(files[file], keyed, name)
		}
		for i := range x.Parts {
			x.Parts[i].Error = strings.ReplaceAll(x.Parts[i].Error, keyed, name)
		}
	}
	for name, want := range map[string]string{
		"a": `{"client":"ipv4-1:51000","vip":"[ipv6-1]:80"}`,
		"b": "ipv4-2/24 via ipv4-1 lladdr mac-1 at 08:00:30, ipv4-1",
		"d": "node ip-ipv4-1, listen 127.0.0.1:9470 and 0.0.0.0, [::]:80, x:ipv6-1",
	} {
		if files[name] != want {
			t.Errorf("%s: got  %s\nwant %s", name, files[name], want)
		}
	}
	if _, there := files["maps"]; there || !x.WithoutAddresses || x.Parts[2].Error != "dial ipv4-1:443: refused" ||
		x.Parts[4].Error == "" {
		t.Errorf("maps %v, index %+v", there, x)
	}
}

// TestFormsOfAddresses: an address has the same name in all its forms.
func TestFormsOfAddresses(t *testing.T) {
	n := NewNames("key")
	v6, v4, mac := n.name("2001:db8::7"), n.name("198.51.100.7"), n.name("02:00:5e:10:00:01")
	for text, want := range map[string]string{
		"client=2001%3Adb8%3A%3A7&rate=10":              "client=" + v6 + "&rate=10",
		"vip=%5B2001%3Adb8%3A%3A7%5D%3A80":              "vip=%5B" + v6 + "%5D%3A80",
		"vip=%255b2001%253adb8%253a%253a7%255d%253a80":  "vip=%255b" + v6 + "%255d%253a80",
		"client=198.51.100.7%3A51000":                   "client=" + v4 + "%3A51000",
		"%5B%3A%3Affff%3A198.51.100.7%5D":               "%5B" + v4 + "%5D",
		"%10.0s198.51.100.7 %2001:db8::7":               "%10.0s" + v4 + " %20" + n.name("1:db8::7"),
		"::ffff:c633:6407 and [2001:db8::7%eth0]:80":    v4 + " and [" + v6 + "%eth0]:80",
		"2001:db8::7/128, 198.51.100.7/32":              v6 + "/128, " + v4 + "/32",
		"enx02005e100001.100 up, wlx02005e100001":       "enx" + mac + ".100 up, wlx" + mac,
		"02-00-5E-10-00-01, 0200.5e10.0001":             mac + ", " + mac,
		"lladdr 02%3A00%3A5e%3A10%3A00%3A01":            "lladdr " + mac,
		"2026-11-29T12:03:00 at%3A 08%3A00%3A30, a%3Ab": "2026-11-29T12:03:00 at%3A 08%3A00%3A30, a%3Ab",
	} {
		if got := string(n.replace([]byte(text))); got != want {
			t.Errorf("%s: got %s\nwant %s", text, got, want)
		}
	}
	const infiniband = "80:00:00:48:fe:80:00:00:00:00:00:00:f4:52:14:03:00:7b:cb:a1"
	for _, text := range []string{infiniband, "02:00:5e:ff:fe:10:00:01", "02-00-5e-ff-fe-10-00-01"} {
		if got := string(n.replace([]byte(text))); strings.ContainsAny(got, ":.") || strings.Count(got, "-") != 1 {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// TestSecrets: no secret of a configuration or of a text remains, and what names a file does.
func TestSecrets(t *testing.T) {
	got, err := Config([]byte(`# a comment: SECRET0
kind: GatewayConfiguration
metrics: {tokenFile: /etc/tokens, tls: {keyFile: /etc/tls.key}}
maglev: {seedFile: /etc/seed, seed: SECRET1}
kubernetes: {password: SECRET2, clientKey: [SECRET3], token: 4711}
---
kind: BGPPeer
spec: {password: SECRET4, passwordSecret: {name: bgp, namespace: kept}, peerAddress: 192.0.2.1}
---
kind: Secret
metadata: {name: bgp, annotations: {kubectl.kubernetes.io/last-applied-configuration: SECRET5}}
stringData: {anything: SECRET6}
data: {other: SECRET7}
`))
	if err != nil {
		t.Fatal(err)
	}
	for _, kept := range []string{"/etc/tokens", "/etc/tls.key", "/etc/seed", "192.0.2.1", "namespace: kept"} {
		if !strings.Contains(string(got), kept) {
			t.Errorf("%s is not there", kept)
		}
	}
	for _, lost := range []string{"SECRET0", "SECRET1", "SECRET2", "SECRET3", "SECRET4", "SECRET5", "SECRET6",
		"SECRET7",
		"4711"} {
		if strings.Contains(string(got), lost) {
			t.Errorf("%s is there:\n%s", lost, got)
		}
	}
	if _, err := Config([]byte("password: [SECRET")); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("a text that is not YAML: %v", err)
	}
	for name, text := range map[string]string{
		"private key":             "a\n-----BEGIN RSA PRIVATE KEY-----\nSECRET\n-----END RSA PRIVATE KEY-----\nb",
		"private key without end": "-----BEGIN PRIVATE KEY-----\nSECRET",
		"bearer":                  "Authorization: Bearer SECRETSECRET",
		"user and password":       "https://me:SECRET@proxy:3128",
		"token of an account":     "token eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJTRUNSRVQifQ.SECRET",
	} {
		if got := string(withoutSecrets([]byte(text))); strings.Contains(got, "SECRET") || !strings.Contains(got,
			removed) {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// TestLongJSON: JSON that is longer than its bound is still JSON, and the cut is named.
func TestLongJSON(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"whole elements of a list", `[{"a":[1,2]},{"a":[3,4]},{"b":5,"c":`, `[{"a":[1,2]},{"a":[3,4]}]`},
		{"the first element is too long", `[{"a":[1,2],"b":[3,4`, `[{"a":[1,2],"b":[3]}]`},
		{"an object", `{"a":"x","b":[{"c":"],\"{,"},{"d`, `{"a":"x","b":[{"c":"],\"{,"}]}`},
		{"within a text", `["a","b\`, `["a"]`},
		{"complete", `{"a":1}`, `{"a":1}`},
		{"one number", `[12345`, ""},
	} {
		if got := strings.TrimSpace(string(closed([]byte(c.text)))); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	var b bytes.Buffer
	_, err := Write(t.Context(), &b, []Part{
		{Name: "list.json", MaxBytes: 20, Write: text("[\n {\"a\": 1},\n {\"b\": 2},\n {}\n]\n")},
		{Name: "a.tar.gz", Binary: true, MaxBytes: 4, Write: text("12345")},
	}, "v1", nil)
	files, x := unpack(t, b.Bytes())
	want := []string{"list.json is not complete: it was cut at 13 bytes",
		"a.tar.gz is not complete: it was longer than 4 bytes, and its end is missing"}
	if err != nil || files["list.json"] != "[\n {\"a\": 1}]\n" || !slices.Equal(x.Problems(), want) {
		t.Errorf("%q, %q, %v", files["list.json"], x.Problems(), err)
	}
}
