package files

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"sluice.dev/sluice/allocate/assign"
	"sluice.dev/sluice/allocate/pools"
)

// TestAddresses: Services without a status get addresses of pools, in all files together; a change
// of one file, or of the pools, changes those of others only where it must.
func TestAddresses(t *testing.T) {
	r := newRigWith(t, assign.New(assign.Config{Log: slog.New(slog.DiscardHandler)}), 10*time.Millisecond)
	r.Addresses.Own()
	pool := func(text string) {
		t.Helper()
		p, err := pools.New("p", pools.Spec{Addresses: []string{text}})
		if err != nil {
			t.Fatal(err)
		}
		r.Addresses.SetPools([]*pools.Pool{p})
	}
	balanced := func(name, more string) string {
		return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {type: LoadBalancer, "+
			"ipFamilies: [IPv4], ports: [{port: 80}]%s}\n", name, more)
	}
	r.write("b.yaml", balanced("b", ""))
	r.want("no pools", "")
	pool("192.0.2.0/30")
	r.want("a pool", "192.0.2.0")
	r.write("a.yaml", balanced("a", "")+"---\n"+balanced("a2", ", loadBalancerIP: 192.0.2.2"))
	r.want("another file", "192.0.2.0 192.0.2.1 192.0.2.2")
	r.write("c.yaml", service("c", "192.0.2.1"))
	r.want("one that lists what another one was given", "192.0.2.0 192.0.2.1 192.0.2.2 192.0.2.3")
	r.remove("c.yaml")
	r.write("d.yaml", balanced("d", "")+"---\n"+balanced("e", ""))
	r.want("the pool is empty", "192.0.2.0 192.0.2.1 192.0.2.2 192.0.2.3", "d.yaml#2: Service default/e: "+
		"status.loadBalancer: PoolEmpty: no free IPv4 address in pool p")
	r.remove("b.yaml")
	r.want("an address is free, and the Service in a file that has not changed gets it",
		"192.0.2.0 192.0.2.1 192.0.2.2 192.0.2.3")
	r.write("a.yaml", balanced("a", ", bananas: 1"))
	r.want("malformed, and the other one is gone", "192.0.2.0 192.0.2.1 192.0.2.3", "a.yaml#1: Service default/a: "+
		"spec.bananas: unknown field")
	pool("198.51.100.0/30")
	r.want("another pool", "198.51.100.0 198.51.100.1 198.51.100.2", "a.yaml#1: Service default/a: "+
		"spec.bananas: unknown field")
}
