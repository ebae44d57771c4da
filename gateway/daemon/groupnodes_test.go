package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sluice.dev/sluice/config"
	"sluice.dev/sluice/control/k8s/k8stest"
	"sluice.dev/sluice/control/objects"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/roster"
	"sluice.dev/sluice/gateway/sources"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/internal/statefile"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/serve/status"
	"sluice.dev/sluice/test/bed/certs"
)

// gatewayNode returns the Node of a gateway of the group.
func gatewayNode(name string, i int) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"sluice.dev/gateway": "true"},
			Annotations: map[string]string{
				objects.AnnotationGroupSources: fmt.Sprintf("198.51.100.%d,198.51.100.%d", 2*i, 2*i+1)}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
			Address: fmt.Sprintf("192.0.2.%d", i)}}},
	}
}

// groupDaemon returns a Daemon of Node gw-a that has not started. Its group is that of Nodes.
func groupDaemon(t *testing.T, s *k8stest.Server, dir string) *Daemon {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\n" +
		"clusters: [{name: c, cluster: {server: '" + s.URL() + "'}}]\n"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.NodeName = "gw-a"
	c.Kubernetes.Enabled, c.Kubernetes.Kubeconfig = true, kubeconfig
	c.Group.Nodes, c.Group.StateDir = "sluice.dev/gateway=true", dir
	log := slog.New(slog.DiscardHandler)
	d := &Daemon{log: log, settings: &settings{log: log, atStart: c, inForce: c}}
	d.life.start(t.Context())
	t.Cleanup(d.life.end)
	if err := d.inputs.make(c, log, &d.beats); err != nil {
		t.Fatal(err)
	}
	return d
}

func inForce(d *Daemon) string {
	return strings.Join(memberNames(d.settings.config().Group.Members), " ")
}

// TestReadMembers: a gateway starts with the members that Nodes have, waits until its own Node is
// one, and goes on with the last list without an API server.
func TestReadMembers(t *testing.T) {
	s, dir := k8stest.Start(t), t.TempDir()
	s.Set(gatewayNode("gw-b", 2))
	d := groupDaemon(t, s, dir)
	done := make(chan error)
	go func() { done <- d.readMembers(t.Context()) }()
	select {
	case err := <-done:
		t.Fatalf("it did not wait for its own Node: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	s.Set(gatewayNode("gw-a", 1))
	if err := <-done; err != nil || inForce(d) != "gw-a gw-b" {
		t.Fatalf("%v, members %s", err, inForce(d))
	}
	if l, err := roster.In(dir).Load(); err != nil || strings.Join(memberNames(l.Members), " ") != "gw-a gw-b" {
		t.Errorf("the file has %v, %v", l, err)
	}

	s.Stop()
	d = groupDaemon(t, s, dir)
	if err := d.readMembers(t.Context()); err != nil || inForce(d) != "gw-a gw-b" {
		t.Errorf("without the API server %v, members %s", err, inForce(d))
	}
	d = groupDaemon(t, s, t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := d.readMembers(ctx); !errors.Is(err, context.DeadlineExceeded) || inForce(d) != "" {
		t.Errorf("with neither an API server nor a file %v, members %s", err, inForce(d))
	}
	d.handOver.enter(preparing)
	if err := d.readMembers(t.Context()); err == nil || inForce(d) != "" {
		t.Errorf("a process that takes over waits, or has members %s", inForce(d))
	}
}

// TestRemovedMembers: a process knows the gateways that an earlier one removed, until it has no
// flow of theirs: no other gateway gets their addresses. The lists of a gateway with another name
// do not count.
func TestRemovedMembers(t *testing.T) {
	s, dir := k8stest.Start(t), t.TempDir()
	for i, name := range []string{"gw-a", "gw-b", "gw-c"} {
		s.Set(gatewayNode(name, i+1))
	}
	read := func(removed, members string) *Daemon {
		t.Helper()
		d := groupDaemon(t, s, dir)
		if err := d.readMembers(t.Context()); err != nil {
			t.Fatal(err)
		}
		l, err := d.members.file.Load()
		if got := strings.Join(memberNames(l.Removed), " "); err != nil || got != removed || inForce(d) != members {
			t.Errorf("%v, removed %q, members %s, want %q and %s", err, got, inForce(d), removed, members)
		}
		return d
	}
	read("", "gw-a gw-b gw-c")
	s.Delete(gatewayNode("gw-b", 2))
	s.Set(gatewayNode("gw-d", 2))
	for range 2 {
		read("gw-b", "gw-a gw-c")
	}
	d := read("gw-b", "gw-a gw-c")
	if err := d.members.forget(d.members.last.Removed, nil); err != nil {
		t.Fatal(err)
	}
	d = read("gw-b", "gw-a gw-c")
	if err := d.members.forget(nil, nil); err != nil {
		t.Fatal(err)
	}
	read("", "gw-a gw-c gw-d")

	for _, l := range []roster.Lists{{}, {Removed: d.members.last.Members}} {
		l.Members = []config.GroupMember{{Name: "gw-z", Sources: d.settings.config().Group.Members[0].Sources}}
		if err := roster.In(dir).Save(l); err != nil {
			t.Fatal(err)
		}
		read("", "gw-a gw-c gw-d")
	}
}

// TestFormerAddress: a new gateway gets no address that a member had before, while flows have it,
// also if an earlier process has noted that.
func TestFormerAddress(t *testing.T) {
	s, dir := k8stest.Start(t), t.TempDir()
	for i, name := range []string{"gw-a", "gw-b"} {
		s.Set(gatewayNode(name, i+1))
	}
	read := func(members string) *Daemon {
		t.Helper()
		d := groupDaemon(t, s, dir)
		if err := d.readMembers(t.Context()); err != nil || inForce(d) != members {
			t.Errorf("%v, members %s, want %s", err, inForce(d), members)
		}
		return d
	}
	read("gw-a gw-b")
	moved := gatewayNode("gw-a", 4)
	moved.Status = gatewayNode("gw-a", 1).Status
	s.Set(moved)
	read("gw-a gw-b")
	taker := gatewayNode("gw-c", 3)
	taker.Annotations = gatewayNode("gw-a", 1).Annotations
	s.Set(taker)
	d := read("gw-a gw-b")
	if err := d.members.forget(nil, func(netip.Addr) int { return 1 }); err != nil {
		t.Fatal(err)
	}
	d = read("gw-a gw-b")
	if err := d.members.forget(nil, func(netip.Addr) int { return 0 }); err != nil {
		t.Fatal(err)
	}
	read("gw-a gw-b gw-c")
}

// TestAddressOfAnother: a gateway without flows of an earlier process, which others may have
// removed since its list was written, is no member while another Node has its addresses. They are
// closed when it is one again.
func TestAddressOfAnother(t *testing.T) {
	s, dir := k8stest.Start(t), t.TempDir()
	authority, err := certs.New()
	must(t, err)
	must(t, authority.Write(dir, "gw-a"))
	s.Set(gatewayNode("gw-a", 1))
	s.Set(gatewayNode("gw-b", 2))
	open := func(d *Daemon) (any, bool) { return d.group.OpenAddress(false) }
	ends := func(d *Daemon) { // in order, with a spare address
		kill(t, d)
		must(t, statefile.Sync(filepath.Join(dir, sources.Name), map[string]any{"version": 1, "incarnation": 1,
			"addresses": []sources.SourceAddress{{Address: netip.MustParseAddr("198.51.100.2"), State: sources.Open},
				{Address: netip.MustParseAddr("198.51.100.3"), State: sources.Spare}}}))
		must(t, sources.Forget(d.settings.config().StateDir))
	}
	d := joined(t, s, dir)
	ends(d)
	d = joined(t, s, dir)
	if a, ok := open(d); !ok {
		t.Fatalf("after an end in order %v is open", a)
	}
	kill(t, d)
	taker := gatewayNode("gw-c", 3)
	taker.Annotations = gatewayNode("gw-a", 1).Annotations
	s.Set(taker)
	d = joined(t, s, dir) // after kill -9 others still have it as a member
	if inForce(d) != "gw-a gw-b" {
		t.Errorf("after kill -9 the members are %s", inForce(d))
	}
	ends(d)
	go func() { // it has forgotten its list, and waits
		for l, err := roster.In(dir).Load(); err != nil || len(l.Members) > 0; l, err = roster.In(dir).Load() {
			if t.Context().Err() != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
		s.Delete(taker)
	}()
	d = joined(t, s, dir)
	if a, ok := open(d); ok {
		t.Errorf("%v is open, which another gateway has had", a)
	}
	kill(t, d)
}

// joined returns a Daemon of gw-a that is a member of its group, with the flow table of the process
// before. It does not run.
func joined(t *testing.T, s *k8stest.Server, dir string) *Daemon {
	t.Helper()
	d := groupDaemon(t, s, dir)
	d.handOver.saving = make(chan struct{}, 1)
	c := d.settings.inForce
	c.StateDir, c.Flows.IPv4, c.Flows.IPv6, c.Drain.HandOver = filepath.Join(dir, "state"), 256, 0, true
	c.Group.TLS = config.GroupTLS{CertFile: filepath.Join(dir, certs.CertFile),
		KeyFile: filepath.Join(dir, certs.KeyFile), CAFile: filepath.Join(dir, certs.CAFile)}
	must(t, d.flows.lock(c, d.log))
	must(t, d.readMembers(t.Context()))
	must(t, d.flows.open(d.settings.config(), d.log, &d.services))
	must(t, d.joinGroup(1))
	return d
}

// kill ends the use of the files, which stay.
func kill(t *testing.T, d *Daemon) {
	t.Helper()
	d.group.Close()
	d.flows.reader.Close()
	for _, err := range d.flows.close(true) {
		must(t, err)
	}
}

// TestRemovedGatewayReturns: a gateway that was removed from its group has no copies when it is a
// member again, because others may have given the ports of these flows to other clients.
func TestRemovedGatewayReturns(t *testing.T) {
	own := gatewayNode("gw-a", 1)
	again := own.DeepCopy()
	own.UID, again.UID = "made first", "made again"
	for _, c := range []struct {
		name   string
		end    func(t *testing.T, s *k8stest.Server, d *Daemon)
		copies int
	}{
		{"it was not removed", func(*testing.T, *k8stest.Server, *Daemon) {}, 1},
		{"while it ran, and was killed before it removed its table", func(t *testing.T, s *k8stest.Server, d *Daemon) {
			s.Delete(own)
			g := d.inputs.kubernetes.Gateways()
			for nodes, _ := g.Nodes(); len(nodes) > 1; nodes, _ = g.Nodes() {
				time.Sleep(time.Millisecond)
			}
			if err := d.changeMembers(t.Context()); !errors.Is(err, errRemoved) {
				t.Fatalf("it goes on: %v", err)
			}
			d.open = make(chan struct{})
			close(d.open)
			if !d.keepsState() {
				t.Error("it leaves nothing before it knows")
			}
			d.life.fail(errRemoved)
			if err := d.serve(t.Context()); !errors.Is(err, errRemoved) || d.keepsState() {
				t.Errorf("it ends with %v, and keeps its table", err)
			}
			must(t, d.leaveGroup())
			s.Set(own)
		}, 0},
		{"while it did not run", func(_ *testing.T, s *k8stest.Server, _ *Daemon) {
			s.Delete(own)
			time.AfterFunc(300*time.Millisecond, func() { s.Set(again) })
		}, 0},
		{"and made a member again while it did not run", func(_ *testing.T, s *k8stest.Server, _ *Daemon) {
			s.Delete(own)
			s.Set(again)
		}, 0},
		{"before a reboot, and its table is on a disk", func(t *testing.T, _ *k8stest.Server, d *Daemon) {
			file := filepath.Join(d.settings.config().StateDir, sources.Name)
			text, err := os.ReadFile(file)
			must(t, err)
			boot, err := statefile.Boot()
			must(t, err)
			other := strings.Replace(string(text), boot, "an earlier boot", 1)
			if other == string(text) {
				t.Fatalf("%s has no boot: %s", file, text)
			}
			must(t, os.WriteFile(file, []byte(other), 0o600))
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, dir := k8stest.Start(t), t.TempDir()
			authority, err := certs.New()
			must(t, err)
			must(t, authority.Write(dir, "gw-a"))
			s.Set(own)
			s.Set(gatewayNode("gw-b", 2))
			d := joined(t, s, dir)
			h, err := d.flows.file.Table.Register()
			must(t, err)
			at := func(last byte) header.Addr { return header.AddrFrom4([4]byte{203, 0, 113, last}) }
			now := flowtable.Time(boottime.Nanos())
			h.Enter(now)
			_, status := h.Create(now, &flowtable.NewFlow{Client: header.Tuple{Src: at(1), SrcPort: 1, Dst: at(2),
				DstPort: 80, Proto: header.ProtoTCP}, Backend: at(3), BackendPort: 80,
				Source: header.AddrFrom4([4]byte{198, 51, 100, 4}), SourcePort: 1})
			if status != flowtable.Created {
				t.Fatal(status)
			}
			h.Close()
			c.end(t, s, d)
			kill(t, d)
			d = joined(t, s, dir)
			if list := d.group.View().Members; len(list) != 1 || list[0].Copies != c.copies {
				t.Errorf("the next process begins with %+v, want %d copies", list, c.copies)
			}
			kill(t, d)
		})
	}
}

// TestNodesThatCannotBeRead: the status says that changes of members are not noticed.
func TestNodesThatCannotBeRead(t *testing.T) {
	s := k8stest.Start(t)
	s.Set(gatewayNode("gw-a", 1))
	d := groupDaemon(t, s, t.TempDir())
	if list := d.memberConditions(); len(list) != 1 {
		t.Errorf("before they are read: %v", list)
	}
	if err := d.readMembers(t.Context()); err != nil {
		t.Fatal(err)
	}
	says := func(n int) {
		t.Helper()
		var list []status.ConditionView
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if list = d.memberConditions(); len(list) == n {
				return
			}
		}
		t.Errorf("conditions %v, want %d", list, n)
	}
	says(0)
	s.Stop()
	says(1)
}

// TestMembersAndReload: a reload keeps the members of Nodes, and is refused if they could not work
// with the other settings.
func TestMembersAndReload(t *testing.T) {
	const head = "apiVersion: sluice.dev/v1alpha1\nkind: GatewayConfiguration\ninterfaces: [{name: eth0}]\n" +
		"kubernetes: {enabled: true}\ngroup:\n  nodes: sluice.dev/gateway=true\n" +
		"  tls: {certFile: /c, keyFile: /k, caFile: /a}\n"
	pool := func(of string) string { return "addressPools: [{name: p, addresses: [" + of + "/32]}]\n" }
	s := &settings{log: slog.New(slog.DiscardHandler), level: new(slog.LevelVar),
		file: filepath.Join(t.TempDir(), "gateway.yaml")}
	var err error
	if s.inForce, err = config.Parse([]byte(head)); err != nil {
		t.Fatal(err)
	}
	list, problems := roster.New(roster.Input{Port: 9473, Check: s.inForce.CheckMember, Nodes: []objects.GatewayNode{{
		Name: "gw-a", Selected: true, Annotated: true, Sources: "198.51.100.2,198.51.100.3",
		Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}}})
	if len(list) != 1 {
		t.Fatalf("problems %v", problems)
	}
	s.setMembers(list)
	for _, c := range []struct{ text, refused string }{
		{pool("198.51.100.9"), ""},
		{pool("198.51.100.3"), "group.nodes: selects Node gw-a: sources[1] is 198.51.100.3 of"},
	} {
		if err := os.WriteFile(s.file, []byte(head+c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.reload()
		v := s.view()
		if len(v.NeedRestart) != 0 || len(s.config().Group.Members) != 1 || (v.Error != "") != (c.refused != "") ||
			!strings.Contains(v.Error, c.refused) {
			t.Errorf("%s: error %q, pending %v, members %v", c.text, v.Error, v.NeedRestart, s.config().Group.Members)
		}
	}
}
