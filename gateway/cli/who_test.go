package cli

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sluice.dev/sluice/gateway/flowlog"
	"sluice.dev/sluice/serve/status"
)

// TestWho: the answers without a gateway, and their exit codes.
func TestWho(t *testing.T) {
	dir, empty := t.TempDir(), t.TempDir()
	const line = `{"time":"2026-11-29T12:00:00.000000Z","event":"begin","protocol":"TCP",` +
		`"client":"198.51.100.7:40000","vip":"203.0.113.9:80","snat":"10.0.0.1:21360","backend":"10.0.1.12:8080",` +
		`"service":"shop/web"}` + "\n"
	end := strings.Replace(strings.Replace(line, "12:00:00", "12:05:00", 1), `"begin"`, `"end","why":"timeout"`, 1)
	if err := os.WriteFile(filepath.Join(dir, "flows-1.jsonl"), []byte(line+end), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args, out, errs string
		code            int
	}{
		{"10.0.0.1:21360 --at 2026-11-29T12:01:00Z --files " + dir, "198.51.100.7:40000", "", 0},
		{"10.0.0.1:21360 --to 10.0.1.12:8080 --protocol tcp --at 2026-11-29T12:01:00Z --files " + dir, "shop/web",
			"", 0},
		{"10.0.0.1:21360 --at 2026-11-29T12:01:00Z -o json --files " + dir, `"alive": false`, "", 0},
		{"10.0.0.1:21360 --at 2026-11-29T12:06:00Z --files " + dir, "",
			"before, 198.51.100.7:40000 had it until 2026-11-29T12:05:00", 3},
		{"10.0.0.1:21360 --at 2026-11-29T11:06:00Z --files " + dir, "", "the flow log begins later", 3},
		{"10.0.0.1:21360 --to 10.0.1.13:8080 --at 2026-11-29T12:01:00Z --files " + dir, "",
			"no flow had the source", 3},
		{"10.0.0.1:21360 --files " + empty, "", "has no files of a flow log", 1},
		{"10.0.0.1 --files " + dir, "", "no address and port", 2},
		{"10.0.0.1:1 --to web --files " + dir, "", "--to", 2},
		{"10.0.0.1:1 --at noon --files " + dir, "", "is no time", 2},
	} {
		code, out, errs := sluice(t, append([]string{"who"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(out, tt.out) || !strings.Contains(errs, tt.errs) {
			t.Errorf("%s: %d\n%s%s", tt.args, code, out, errs)
		}
	}
}

// TestWhoJoins: a flow that both the log and the flow table have is one holder. Its start is the
// log's if the table does not know it.
func TestWhoJoins(t *testing.T) {
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	client := netip.MustParseAddrPort("198.51.100.7:40000")
	logged := func(start, ended time.Time) flowlog.Holder {
		return flowlog.Holder{Record: flowlog.Record{Protocol: "TCP", Client: client, Start: start}, Ended: ended}
	}
	holders := func(h ...flowlog.Holder) flowlog.Answer { return flowlog.Answer{Holders: h} }
	begin, later := at.Add(-time.Minute), at.Add(time.Hour)
	for _, c := range []struct {
		name string
		log  flowlog.Answer
		live status.FlowView
		want string
	}{
		{"alive", holders(logged(begin, time.Time{})), status.FlowView{Start: begin}, "alive"},
		{"the clock was set", holders(logged(begin, time.Time{})), status.FlowView{Start: begin.Add(-5 * time.Second)},
			"alive"},
		{"it ends between the two reads", holders(logged(begin, at.Add(time.Second))), status.FlowView{Start: begin},
			"ended"},
		{"the next one", holders(logged(begin, at), logged(begin.Add(30*time.Second), time.Time{})),
			status.FlowView{Start: begin.Add(30 * time.Second)}, "ended alive"},
		{"the next one is not in the log", holders(logged(begin, at)),
			status.FlowView{Start: begin.Add(30 * time.Second)}, "ended alive"},
		{"not in the log", flowlog.Answer{}, status.FlowView{Start: begin}, "alive"},
		{"later", flowlog.Answer{}, status.FlowView{Start: later}, ""},
		{"its start is in the log only", holders(logged(begin, time.Time{})), status.FlowView{}, "alive"},
		{"its later start is in the log only", flowlog.Answer{Later: []flowlog.Holder{logged(later, time.Time{})}},
			status.FlowView{}, ""},
		{"without a start", flowlog.Answer{}, status.FlowView{}, "its start is not known, because it is older than " +
			"the log, was moved to a table of another size or version, or was restored from the group"},
		{"a copy", flowlog.Answer{}, status.FlowView{Group: status.GroupCopy, Owner: "gw-b"},
			"its start is not known here: it is a copy of a flow of gateway gw-b, whose log has it"},
		{"the clock was ahead at its begin", flowlog.Answer{Later: []flowlog.Holder{logged(later, time.Time{})}},
			status.FlowView{Start: begin}, "alive"},
	} {
		c.live.Protocol, c.live.Client = "TCP", client
		v := whoOf(&flowlog.Query{At: at}, &c.log, []status.FlowView{c.live}, true)
		var got []string
		for _, h := range v.Holders {
			switch {
			case h.Doubt != "":
				got = append(got, h.Doubt)
			case h.Alive:
				got = append(got, "alive")
			default:
				got = append(got, "ended")
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %s", c.name, got, c.want)
		}
	}
}

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("X", 2*3600)
	now := time.Date(2026, 11, 29, 15, 0, 0, 0, zone)
	for text, want := range map[string]string{
		"2026-11-29T12:03:00Z": "2026-11-29T12:03:00Z", "2026-11-29T12:03:00": "2026-11-29T10:03:00Z",
		"2026-11-29 12:03": "2026-11-29T10:03:00Z", "12:03": "2026-11-29T10:03:00Z", "12:03:09": "2026-11-29T10:03:09Z",
	} {
		if got, err := parseTime(text, now); err != nil || got.UTC().Format(time.RFC3339) != want {
			t.Errorf("%s: %v, %v, want %s", text, got, err, want)
		}
	}
}
