package demo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"sluice.dev/sluice/bench/demo/console"
)

// counted shows the gateway's counters and the error counters of the other hosts' kernels.
func (d *demo) counted(ctx context.Context) error {
	r := d.flows.Stop()
	d.p.Say("the long-lived connections end, after %s requests", console.Grouped(r.Requests))
	if err := d.laws(ctx, "since the restart"); err != nil {
		return err
	}
	v, err := d.gw.Client.Stats(ctx)
	if err != nil {
		return err
	}
	states, drops := map[string]uint64{}, map[string]uint64{}
	var used uint64
	for _, f := range v.Flows {
		used += f.Used
		add(states, f.States)
	}
	for _, w := range v.Workers {
		add(drops, w.Drops)
	}
	d.p.Say("")
	d.p.Say("flows now: %s (%s)", console.Grouped(used), counts(states))
	d.p.Say("drops by reason: %s", counts(drops))
	d.p.Say("kernel program: %s", counts(v.Steering))
	d.p.Say("")
	return d.kernels()
}

// kernels checks the counters of damaged packets on every host.
func (d *demo) kernels() error {
	c := console.Columns{-9, 11, 11, 12, -20}
	d.p.Head(c, "kernel of", "TCP in", "UDP in", "sent again", "damaged packets")
	var damaged []string
	for _, h := range d.hosts() {
		now, err := h.Counters()
		if err != nil {
			return err
		}
		n := now.Since(d.before[h])
		bad := n.Damaged()
		text := "0"
		if len(bad) > 0 {
			text = strings.Join(bad, " ")
			damaged = append(damaged, h.Name+" "+text)
		}
		d.p.Row(c, h.Name, console.Grouped(n["TcpInSegs"]), console.Grouped(n["UdpInDatagrams"]+n["Udp6InDatagrams"]),
			console.Grouped(n.Retransmitted()), text)
	}
	d.p.Say("")
	d.p.Expect(len(damaged) == 0, "no kernel counts a bad checksum or header: %s", cmp.Or(strings.Join(damaged, "; "),
		"0"))
	return nil
}

func add(sum, m map[string]uint64) {
	for k, n := range m {
		sum[k] += n
	}
}

// counts writes a map in one line, the largest first, without zeros.
func counts(m map[string]uint64) string {
	list := slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		return cmp.Or(cmp.Compare(m[b], m[a]), cmp.Compare(a, b))
	})
	var out []string
	for _, k := range list {
		if m[k] > 0 {
			out = append(out, fmt.Sprintf("%s %s", k, console.Grouped(m[k])))
		}
	}
	return cmp.Or(strings.Join(out, ", "), "none")
}

// laws checks that each worker accounts for every packet and every frame.
func (d *demo) laws(ctx context.Context, when string) error {
	v, err := d.gw.Laws(ctx)
	if err != nil && len(v.Workers) == 0 {
		return err
	}
	c := console.Columns{-8, 9, 9, 2, 9, 9, 9, 6, 9, 2, 9, 9, 6}
	d.p.Head(c, "worker", "received", "generated", "=", "sent", "returned", "dropped", "held", "frames", "=", "free",
		"at links", "held")
	for _, w := range v.Workers {
		f := w.FrameLaw
		d.p.Row(c, w.Worker, console.Grouped(w.Rx), console.Grouped(w.Generated), law(w.PacketLaw.Holds),
			console.Grouped(w.Tx),
			console.Grouped(w.Returned), console.Grouped(w.Dropped), w.Held,
			console.Grouped(f.Total), law(f.Holds), console.Grouped(f.Free), console.Grouped(f.Links), f.Held)
	}
	d.p.Expect(err == nil, "every packet and every frame is accounted for, %s", when)
	return nil
}

func law(holds bool) string {
	if holds {
		return "="
	}
	return "!="
}

// leave ends the daemon and checks that nothing of it is left.
func (d *demo) leave() error {
	began := time.Now()
	err := d.gw.Stop()
	d.p.Expect(err == nil, "the daemon ends after SIGTERM with exit status 0 (%s), after %.1f s",
		cmp.Or(errorText(err), "it did"), time.Since(began).Seconds())
	left, err := d.gw.Leftovers()
	if err != nil {
		return err
	}
	d.p.Expect(len(left) == 0, "no interface, XDP or TC program, mount, pin, flow table or socket of it is left: %s",
		cmp.Or(strings.Join(left, ", "), "none"))
	return nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// keep prints commands to try, and waits until the user interrupts the demo.
func (d *demo) keep(ctx context.Context) {
	d.p.Say("")
	d.p.Say("The network and the gateway stay up. Commands to try in another terminal:")
	for _, t := range d.toTry() {
		d.p.Say("  %s", d.p.Paint(console.Faint, "# "+t[1]))
		d.p.Say("  %s", t[0])
	}
	d.p.Say("To remove everything press ^C here, or: kill %d", os.Getpid())
	d.p.Say("(If the daemon itself is killed, the demo ends with a failure.)")
	stands := time.Now()
	<-ctx.Done()
	d.p.Waited(time.Since(stands)) // the waiting time does not count
}

// toTry returns commands, each with a description.
func (d *demo) toTry() [][2]string {
	ns := func(name string) string { return topoName(d, name) }
	sluice := fmt.Sprintf("%s --socket %s", d.Sluice, d.gw.Socket())
	web, vip := d.web[0].Addr4().String(), webVIP4.String()
	return [][2]string{
		{"ip netns exec " + ns(d.client.Name) + " curl http://" + vip, "a request; the answer names the backend"},
		{sluice + " services", "Services and their frontends"},
		{sluice + " backends", "the endpoints, their next hops and traffic"},
		{sluice + " flows", "the flow table"},
		{sluice + " stats", "per worker, per drop reason, the laws"},
		{sluice + " status", "state of the configuration and of each queue"},
		{sluice + " explain --from " + d.client.Addr4().String() + " --to " + vip,
			"the decision about a packet, step by step"},
		{"ip netns exec " + ns("gateway") + " " + sluice + " doctor", "problems of this host for a gateway"},
		{"ip netns exec " + ns("gateway") + " ip -d link", "the gateway's interfaces"},
		{sluice + " drain " + web, "no new connections to " + d.web[0].Name},
		{sluice + " undrain " + web, "and back"},
		{"${EDITOR:-vi} " + d.gw.Manifests() + "/web.yaml", "add " + d.net.Backends[3].Name +
			", remove another"},
		{"tail -f " + d.gw.LogFile(), "the daemon's log"},
	}
}

func topoName(d *demo, name string) string {
	for _, h := range d.hosts() {
		if h.Name == name {
			return h.NetnsName()
		}
	}
	return name
}
