package kinds

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"sluice.dev/sluice/test/bed/pagetest"
)

func object(t *testing.T, api, kind, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	text := fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata: {name: %s}\nspec: %s\n", api, kind, name, spec)
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

const own, metallb, old = "sluice.dev/v1alpha1", "metallb.io/v1beta2", "metallb.io/v1beta1"

var update = flag.Bool("update", false, "rewrite testdata/mistakes.md")

// The lines of testdata/mistakes.md around its table.
const (
	mistakesBegin = "<!-- Table of mistakes: go test ./announce/kinds -run TestBad -update -->\n"
	mistakesEnd   = "<!-- end of the table -->\n"
)

// TestBad: testdata/mistakes.md has the message about each mistake.
func TestBad(t *testing.T) {
	t.Parallel()
	var page strings.Builder
	page.WriteString("\n| kind | `spec` | message |\n| --- | --- | --- |\n")
	text, err := os.ReadFile("testdata/bad.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		n++
		spec, want, _ := strings.Cut(strings.TrimSpace(line), " => ")
		kind, text, _ := strings.Cut(spec, " ")
		_, problems := new(Reader).Read([]*unstructured.Unstructured{object(t, own, kind, "x", text)})
		if len(problems) == 0 || !strings.Contains(problems[0].Note, want) {
			t.Errorf("%s: %+v, want %q", spec, problems, want)
			continue
		}
		fmt.Fprintf(&page, "| %s | `%s` | %s |\n", kind, text, strings.ReplaceAll(problems[0].Note, "\n", "; "))
	}
	if n < 30 {
		t.Errorf("%d rows were read", n)
	}
	page.WriteString("\n")
	pagetest.Keep(t, "testdata/mistakes.md", mistakesBegin, mistakesEnd, page.String(), *update,
		"go test ./announce/kinds -run TestBad -update")
}

// The previous version of an unreadable object stays in force; without one the object is not used.
func TestMistakesMoveNothing(t *testing.T) {
	t.Parallel()
	var r Reader
	peer := func(spec string) *unstructured.Unstructured { return object(t, own, "BGPPeer", "x", spec) }
	set, problems := r.Read([]*unstructured.Unstructured{peer("{myASN: 1, peerASN: 2, peerAddress: 10.0.0.1}")})
	if len(set.Peers) != 1 || len(problems) > 0 {
		t.Fatalf("%+v, %v", set, problems)
	}
	for range 2 {
		set, problems = r.Read([]*unstructured.Unstructured{peer("{myASN: 1, peerASN: 2, peerAddress: tor}")})
		if len(set.Peers) != 1 || set.Peers[0].Address.String() != "10.0.0.1" || len(problems) != 1 ||
			!strings.Contains(problems[0].Note, "its previous version stays in force") {
			t.Errorf("%+v, %v", set, problems)
		}
	}
	if set, _ = r.Read(nil); len(set.Peers) != 0 {
		t.Errorf("an object that is gone: %+v", set.Peers)
	}
}

// TestResumedPools: an unreadable pool has the addresses that the previous process read, and none
// if that could not read it either, or if it is another pool.
func TestResumedPools(t *testing.T) {
	t.Parallel()
	pool := func(api, uid, name, addresses string) *unstructured.Unstructured {
		o := object(t, api, map[string]string{own: "AddressPool", old: "IPAddressPool"}[api], name,
			"{addresses: ["+addresses+"], serviceAllocation: {namespaceSelectors: [{matchLabels: {a: b}}]}}")
		o.SetUID(types.UID(uid))
		o.SetLabels(map[string]string{"of": name})
		return o
	}
	const good, bad = "192.0.2.0/24", "192.0.2.9-192.0.2.1"
	theirs := pool(old, "2", "theirs", "198.51.100.0/24")
	read := func(r *Reader, objects ...*unstructured.Unstructured) (string, *Set) {
		t.Helper()
		set, _ := r.Read(objects)
		var names []string
		for i, a := range []string{"192.0.2.5", "198.51.100.5", "203.0.113.5"} {
			if p := set.PoolOf(netip.MustParseAddr(a)); p != nil {
				names = append(names, fmt.Sprint(i, ":", p.Name))
			}
		}
		return strings.Join(names, " "), set
	}
	_, set := read(&Reader{}, pool(own, "1", "public", good), theirs)
	text, err := json.Marshal(set.SavedPools()) // as it is in the file
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		objects  []*unstructured.Unstructured
		unlisted bool
		want     string
	}{
		"bad": {objects: []*unstructured.Unstructured{pool(own, "1", "public", bad)}, want: "0:public"},
		"bad, and others": {objects: []*unstructured.Unstructured{pool(own, "1", "public", bad), theirs},
			want: "0:public 1:theirs"},
		"another one": {objects: []*unstructured.Unstructured{pool(own, "9", "public", bad)}},
		"gone":        {},
		"good": {objects: []*unstructured.Unstructured{pool(own, "1", "public", "203.0.113.0/24")},
			want: "2:public"},
		"not listed": {objects: []*unstructured.Unstructured{pool(own, "1", "public", bad)}, unlisted: true,
			want: "0:public 1:theirs"},
		"not listed, and the name is another's": {objects: []*unstructured.Unstructured{
			pool(own, "8", "theirs", "203.0.113.0/24")}, unlisted: true, want: "2:theirs"},
		"not listed, and the name is a bad one's": {objects: []*unstructured.Unstructured{
			pool(own, "8", "theirs", bad)}, unlisted: true, want: "1:theirs"},
	} {
		var said []SavedPool
		if err := json.Unmarshal(text, &said); err != nil {
			t.Fatal(err)
		}
		r := &Reader{Unlisted: test.unlisted}
		r.Resume(said)
		for range 2 { // also after a second Read, and in the process after that
			got, set := read(r, test.objects...)
			if got != test.want {
				t.Errorf("%s: pools of addresses are %q, want %q", name, got, test.want)
			}
			r = &Reader{Unlisted: test.unlisted}
			r.Resume(set.SavedPools())
		}
	}
	// Selections and aggregates are decided as usual.
	r := &Reader{}
	r.Resume(set.SavedPools())
	_, set = read(r, pool(own, "1", "public", bad), object(t, own, "BGPAdvertisement", "labelled",
		"{ipAddressPoolSelectors: [{matchLabels: {of: public}}]}"))
	p := set.PoolOf(netip.MustParseAddr("192.0.2.5"))
	if p == nil || !set.Advertisements[0].ForPool(p) || !p.Covers(netip.MustParsePrefix(good)) ||
		!p.SelectsNamespaces() {
		t.Errorf("%+v", p)
	}
}

// An unusable object does not displace another one with its name.
func TestMistakeDisplacesNone(t *testing.T) {
	t.Parallel()
	set, problems := new(Reader).Read([]*unstructured.Unstructured{
		object(t, own, "AddressPool", "public", "{addresses: [192.0.2]}"),
		object(t, "metallb.io/v1beta1", "IPAddressPool", "public", "{addresses: [192.0.2.0/24]}"),
		object(t, own, "BGPPeer", "tor", "{myASN: 1}"),
		object(t, metallb, "BGPPeer", "tor", "{myASN: 1, peerASN: 2, peerAddress: 10.0.0.1}"),
	})
	if len(set.Pools) != 1 || len(set.Peers) != 1 || len(problems) != 2 {
		t.Errorf("%+v, %+v", set, problems)
	}
}

// MetalLB's objects are read, objects of sluice.dev come first, and fields whose values change
// nothing are accepted.
func TestMetalLB(t *testing.T) {
	t.Parallel()
	set, problems := new(Reader).Read([]*unstructured.Unstructured{
		object(t, metallb, "BGPPeer", "tor", "{myASN: 1, peerASN: 2, peerAddress: 10.0.0.1, bfdProfile: fast, "+
			"ebgpMultiHop: false, disableMP: false, passwordSecret: {}}"),
		object(t, metallb, "BGPPeer", "other", "{myASN: 1, peerASN: 2, peerAddress: 10.0.0.1}"),
		object(t, own, "BGPPeer", "other", "{myASN: 1, peerASN: 2, peerAddress: 10.0.0.2}"),
		object(t, "metallb.io/v1beta1", "BFDProfile", "fast", "{receiveInterval: 100, transmitInterval: 100, "+
			"echoMode: false, passiveMode: false}"),
		object(t, "metallb.io/v1beta1", "IPAddressPool", "pool", "{addresses: [192.0.2.0/24]}"),
		object(t, "metallb.io/v1beta1", "BGPAdvertisement", "all", "{ipAddressPools: [pool], peers: [tor]}"),
		object(t, "metallb.io/v1beta1", "L2Advertisement", "all", "{ipAddressPools: [pool], interfaces: [eth0]}"),
	})
	if len(set.Peers) != 2 || set.Peers[0].Address.String() != "10.0.0.2" || set.Peers[1].BFD == nil ||
		len(set.Pools) != 1 || len(set.Advertisements) != 1 || len(set.Layer2) != 1 {
		t.Errorf("%+v", set)
	}
	if len(problems) != 1 || problems[0].Reason != NameTaken || problems[0].About.APIVersion != metallb {
		t.Errorf("%+v", problems)
	}
}

// TestDocumented: docs/metallb.md has each unsupported field, with its reason.
func TestDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/metallb.md")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.NewReplacer("`", "", "\n", " ").Replace(string(text))
	all := Gaps("BGPPeer", map[string]any{"bfdProfile": "a", "ebgpMultiHop": true})
	for i := range all {
		all[i].Path = "BGPPeer " + strings.TrimPrefix(all[i].Path, "spec.")
	}
	for of, g := range notDone {
		g.Path = strings.Replace(of, ".", " ", 1)
		all = append(all, g)
	}
	if len(all) < 8 {
		t.Errorf("%d fields", len(all))
	}
	for _, g := range all {
		if row := "| " + g.Path + " | " + g.Why + " | " + g.Do + " |"; !strings.Contains(plain, row) {
			t.Errorf("docs/metallb.md lacks %s", row)
		}
	}
}
