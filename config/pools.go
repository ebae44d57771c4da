package config

import (
	"fmt"

	"sluice.dev/sluice/allocate/pools"
)

// AddressPool has addresses for Services of manifests. Its fields are those of the kind AddressPool
// (docs/allocate.md), as far as they need no API server.
type AddressPool struct {
	Name string `json:"name"`
	// Addresses are prefixes and ranges.
	Addresses []string `json:"addresses"`
	// AutoAssign: Services that ask for neither pool nor address may get one from here.
	AutoAssign bool `json:"autoAssign"`
	// AvoidBuggyIPs leaves out IPv4 addresses that end with 0 or 255.
	AvoidBuggyIPs     bool              `json:"avoidBuggyIPs"`
	ServiceAllocation ServiceAllocation `json:"serviceAllocation"`
}

// ServiceAllocation says whom a pool is for; without namespaces it is for all.
type ServiceAllocation struct {
	// Priority orders the pools that are for a Service: the lowest first, and 0 after all others.
	Priority   int      `json:"priority"`
	Namespaces []string `json:"namespaces"`
}

// setDefaults fills in the fields of a list's element that the file does not have.
func (p *AddressPool) setDefaults() { p.AutoAssign = true }

// spec is the pool as the allocator reads it.
func (p *AddressPool) spec() pools.Spec {
	s := pools.Spec{Addresses: p.Addresses, AutoAssign: &p.AutoAssign, AvoidBuggyIPs: p.AvoidBuggyIPs}
	if p.ServiceAllocation.Priority != 0 || len(p.ServiceAllocation.Namespaces) > 0 {
		s.ServiceAllocation = &pools.ServiceAllocation{Priority: p.ServiceAllocation.Priority,
			Namespaces: p.ServiceAllocation.Namespaces}
	}
	return s
}

// Pools returns addressPools as the allocator has them. They must be valid.
func (c *Configuration) Pools() (list []*pools.Pool) {
	for i := range c.AddressPools {
		p := &c.AddressPools[i]
		pool, err := pools.New(p.Name, p.spec())
		if err != nil {
			panic("config: a pool is not valid that Validate has taken: " + err.Error())
		}
		list = append(list, pool)
	}
	return list
}

// addressPools judges pools: each by itself, and that no two have a name or an address.
func (k *check) addressPools(c *Configuration) {
	var before []*pools.Pool
	var at []int // of before
	for i := range c.AddressPools {
		p := &c.AddressPools[i]
		path := fmt.Sprintf("addressPools[%d]", i)
		problems := len(k.errs)
		if p.Name == "" {
			k.fail(path+".name", "is missing, Services ask for a pool by it")
		}
		if len(p.Addresses) == 0 {
			k.fail(path+".addresses", "is empty, list prefixes such as 192.0.2.0/24 or ranges")
		}
		for j, text := range p.Addresses {
			if err := pools.CheckAddresses(text); err != nil {
				k.fail(fmt.Sprintf("%s.addresses[%d]", path, j), "%v", err)
			}
		}
		if n := p.ServiceAllocation.Priority; n < 0 {
			k.fail(path+".serviceAllocation.priority", "is %d, choose 0 or more", n)
		} else if n > 0 && len(p.ServiceAllocation.Namespaces) == 0 {
			k.fail(path+".serviceAllocation.priority", "is %d without namespaces, name those that the pool is for", n)
		}
		if len(k.errs) > problems {
			continue
		}
		pool, err := pools.New(p.Name, p.spec())
		if err != nil {
			k.fail(path, "%v", err)
			continue
		}
		for n, q := range before {
			if q.Name == pool.Name {
				k.fail(path+".name", "is %s, as that of addressPools[%d], rename one", pool.Name, at[n])
			}
			if a, overlap := pool.Overlaps(q); overlap {
				k.fail(path+".addresses", "has %s, as addressPools[%d] has, take it out of one", a, at[n])
			}
		}
		before, at = append(before, pool), append(at, i)
	}
	if len(c.AddressPools) > 0 && c.Manifests.Directory == "" {
		k.fail("addressPools", "is for Services of manifests, and manifests.directory is empty; for those of an API "+
			"server sluice-controller has pools")
	}
}
