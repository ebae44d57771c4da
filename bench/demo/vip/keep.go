package vip

import (
	"context"
	"fmt"
	"os"
	"time"

	"sluice.dev/sluice/bench/demo/console"
)

// keep prints commands to try, and waits until the user interrupts the demo.
func (d *demo) keep(ctx context.Context) {
	list, err := d.toTry()
	if err != nil {
		d.p.Fail("the commands to try can be made: " + err.Error())
		return
	}
	d.p.Say("")
	d.p.Say("The network and the gateways stay up. Commands to try in another terminal:")
	for _, t := range list {
		d.p.Say("  %s", d.p.Paint(console.Faint, "# "+t[1]))
		d.p.Say("  %s", t[0])
	}
	d.p.Say("To remove everything press ^C here, or: kill %d", os.Getpid())
	stands := time.Now()
	<-ctx.Done()
	d.p.Waited(time.Since(stands)) // the waiting time does not count
}

// toTry returns commands, each with a description.
func (d *demo) toTry() ([][2]string, error) {
	admin, err := d.lab.Cluster.Kubeconfig(d.lab.Cluster.Admin(), "")
	if err != nil {
		return nil, err
	}
	n, g := d.lab.Net, d.lab.Gateways[len(d.lab.Gateways)-1]
	kubectl := "kubectl --kubeconfig " + admin
	list := [][2]string{}
	for _, target := range d.targets() {
		list = append(list, [2]string{"ip netns exec " + n.Clients[0].NetnsName() + " curl http://" + target.String(),
			"a request; the answer names the backend"})
	}
	back := fmt.Sprintf("ip -n %s link set %s ", g.Host.NetnsName(), g.Host.Interfaces[1].Name)
	return append(list, [][2]string{
		{"ip -n " + n.Router.NetnsName() + " route show proto bird", "the routes; -6 for IPv6"},
		{fmt.Sprintf("%s announce --announcer %s", d.Sluice, g.Announcer.Socket()), g.Host.Name +
			"'s announcements, their peers, and the reasons"},
		{fmt.Sprintf("%s --socket %s services", d.Sluice, g.Socket()), "the Services that it forwards"},
		{back + "down", g.Host.Name + " cannot reach backends any more: look at the routes"},
		{back + "up", "and back"},
		{kubectl + " get addresspools,bgppeers,bgpadvertisements", "the objects, if kubectl is installed"},
		{kubectl + " describe service web",
			"Events name the controller that allocated its addresses, " +
				"and the announcing gateways"},
		{kubectl + ` patch addresspool public --type=merge -p '{"spec":{"addresses":["198.51.100.0/28","2001:db8:1::/120"]}}'`,
			"other addresses: the Service gets new ones, and the router their routes"},
		{"tail -f " + g.Announcer.LogFile(), "its announcer's log"},
	}...), nil
}
