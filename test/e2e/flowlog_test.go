//go:build root

package e2e

import (
	"bufio"
	"encoding/json"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice.dev/sluice/gateway/flowlog"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/topo"
)

// logOf is the configuration of a flow log in a directory.
func logOf(dir string) string {
	return "flowLog: {directory: " + dir + ", maxMB: 100, traffic: true}\n"
}

// readLog reads the plain files of a flow log, and counts lines that are no records.
func readLog(t *testing.T, dir string) (list []flowlog.Record, torn int) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "flows-*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			var r flowlog.Record
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				torn++
				continue
			}
			list = append(list, r)
		}
		f.Close()
	}
	return list, torn
}

// flowKey identifies a flow of a test, in which no client uses a port twice.
type flowKey struct {
	protocol    string
	client, vip netip.AddrPort
}

// lives sorts the log's records by flow.
func lives(t *testing.T, list []flowlog.Record) (begins, ends map[flowKey]flowlog.Record) {
	t.Helper()
	begins, ends = map[flowKey]flowlog.Record{}, map[flowKey]flowlog.Record{}
	for _, r := range list {
		k := flowKey{r.Protocol, r.Client, r.VIP}
		to := map[string]map[flowKey]flowlog.Record{flowlog.Begin: begins, flowlog.End: ends}[r.Event]
		if to == nil {
			continue
		}
		if _, twice := to[k]; twice {
			t.Errorf("two records: %+v", r)
		}
		to[k] = r
	}
	return begins, ends
}

// TestFlowLog: the log has one begin and one end of each flow, TCP and UDP, both families, over a
// hand-over and a kill.
func TestFlowLog(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	const each = 50
	var all []*topo.Flows                         // TCP and UDP in turn
	t.Cleanup(func() { wantLogged(t, dir, all) }) // after the end of the gateway, which ends all flows
	l := newLab(t, labConfig{Config: topo.Config{Backends: 2, Queues: 2}, small: true,
		options: handsOver + logOf(dir)})
	open := func() {
		t.Helper()
		tcp, err := l.Clients[0].OpenTCP(l.ctx, topo.FlowLoad{
			Targets: []netip.AddrPort{at(vip4, webPort), at(vip6, webPort)}, Flows: each,
			Interval: 200 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		udp, err := l.Clients[0].OpenUDP(l.ctx, topo.FlowLoad{
			Targets: []netip.AddrPort{at(vip4, dnsPort), at(vip6, dnsPort)}, Flows: each,
			Interval: 200 * time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tcp, udp)
		time.Sleep(500 * time.Millisecond) // every flow has asked, and the log is written
	}
	open()
	l.next()
	open()
	l.killAndStart()
	open()
	l.wantWho()
	for _, f := range all {
		f.Finish()
	}
	time.Sleep(300 * time.Millisecond) // until the connections are closed
	l.handOverNoMore()
}

// wantLogged checks that the log has the begin and the end of the given flows, and nothing else.
func wantLogged(t *testing.T, dir string, all []*topo.Flows) {
	t.Helper()
	records, torn := readLog(t, dir)
	begins, ends := lives(t, records)
	processes := 0
	for _, r := range records {
		if r.Event == flowlog.Open {
			processes++
		}
		if r.Event == flowlog.Lost {
			t.Errorf("%d lines are lost", r.Lines)
		}
	}
	want := 0
	for i, f := range all {
		for _, s := range f.States() {
			want++
			k := flowKey{[]string{"TCP", "UDP"}[i%2], s.Local, s.Target}
			b, e := begins[k], ends[k]
			switch {
			case s.Broken != nil:
				t.Errorf("%+v is broken: %v", k, s.Broken)
			case b.Time.IsZero() || e.Time.IsZero():
				t.Errorf("%+v: begin %+v, end %+v", k, b, e)
			case b.Backend != e.Backend || b.SNAT != e.SNAT || b.Service != e.Service || e.Service == "" ||
				b.Time.Sub(e.Start).Abs() > time.Millisecond || e.Time.Before(e.LastPacket):
				t.Errorf("begin %+v, end %+v", b, e)
			case e.Traffic == nil || k.protocol == "UDP" && !datagramsCounted(e.Traffic, &s):
				t.Errorf("%+v, traffic %+v", s, e.Traffic)
			case k.protocol == "TCP" && (e.Closed != "fin_client" || e.Why != "stopped"):
				t.Errorf("%+v", e)
			}
		}
	}
	if len(begins) != want || len(ends) != want || processes != 3 || torn > 1 { // the kill may tear one
		t.Errorf("%d begins, %d ends of %d flows; %d processes, %d torn lines", len(begins), len(ends), want, processes,
			torn)
	}
}

// datagramsCounted reports whether a flow's counts are the link's: each request has 64 bytes in a
// frame of the client, and each byte is counted.
func datagramsCounted(got *status.FlowTraffic, s *topo.FlowState) bool {
	frame := uint64(header.EthernetBytes + header.IPv4Bytes + header.UDPBytes + 64)
	if s.Target.Addr().Is6() {
		frame += header.IPv6Bytes - header.IPv4Bytes
	}
	answers, lost := uint64(s.Answers), uint64(s.Lost)
	return got.ToBackend >= answers && got.ToBackend <= answers+lost && got.ToClient >= answers &&
		got.ToClient <= answers+lost && got.ToBackendBytes == got.ToBackend*frame
}

// wantWho checks that each live flow is found by its source, at a time when it was alive already.
func (l *lab) wantWho() {
	l.t.Helper()
	n := 0
	err := l.gate.Client.Flows(l.ctx, status.FlowFilter{}, func(f *status.FlowView) error {
		if n++; n%25 != 0 {
			return nil
		}
		if f.Start.IsZero() {
			l.t.Errorf("no start: %+v", f)
		}
		at := f.Start.Add(100 * time.Millisecond).UTC().Format(time.RFC3339Nano)
		out, err := exec.Command(daemonBinary, "who", "--socket", l.gate.Socket(), f.SNAT.String(), "--to",
			f.Backend.String(), "--protocol", f.Protocol, "--at", at).CombinedOutput()
		if err != nil || !strings.Contains(string(out), f.Client.String()) || !strings.Contains(string(out), "alive") {
			l.t.Errorf("who had %v at %s: %v: %s", f.SNAT, at, err, out)
		}
		return nil
	})
	if err != nil || n == 0 {
		l.t.Errorf("%d flows, %v", n, err)
	}
}

// TestFlowLogFullDisk: a full disk and an unwritable directory stop no flow. The lost lines are
// counted, and the log goes on when it can.
func TestFlowLogFullDisk(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	log := filepath.Join(dir, "log")
	l := newLab(t, labConfig{Config: topo.Config{Backends: 1, Queues: 2}, small: true, options: logOf(log)})
	lost := func() float64 { return l.metric(`sluice_flow_log_lines_total{result="lost"}`) }
	l.wantServed("before the disk is full")
	if lost() != 0 {
		t.Errorf("%v lines are lost", lost())
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 64<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	l.within("lines are lost", func() bool { l.wantServed("while the disk is full"); return lost() > 20 })
	st, err := l.gate.Client.Status(l.ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	said := false
	for _, c := range st.Conditions {
		said = said || c.Name == "flow-log" && strings.Contains(c.Detail, "no space left")
	}
	if !said || !st.Ready {
		t.Errorf("ready %v, conditions %+v", st.Ready, st.Conditions)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	l.within("the log is written again", func() bool { return strings.Contains(l.wholeLog(), "written again") })
	was := lost()
	l.wantServed("after that")
	time.Sleep(100 * time.Millisecond)
	if lost() != was {
		t.Errorf("%v lines are lost, %v while the disk was full", lost(), was)
	}
	var noted uint64
	records, torn := readLog(t, log)
	for _, r := range records {
		noted += r.Lines
	}
	if noted != uint64(was) || torn > 1 {
		t.Errorf("the log says that %d lines are lost, the metric %v; %d torn lines", noted, was, torn)
	}
}
