package config

import (
	"fmt"

	"sluice.dev/sluice/allocate/pools"
)

// AddressPool has addresses for Services in manifests. Its fields are the fields of the kind
// AddressPool (docs/allocate.md) that need no API server.
type AddressPool struct {
	Name string `json:"name"`
	// Addresses are prefixes and ranges.
	Addresses []string `json:"addresses"`
	// AutoAssign: Services that ask for neither a pool nor an address may get one of this pool.
	AutoAssign bool `json:"autoAssign"`
	// AvoidBuggyIPs leaves out IPv4 addresses that end with 0 or 255.
	AvoidBuggyIPs     bool              `json:"avoidBuggyIPs"`
	ServiceAllocation ServiceAllocation `json:"serviceAllocation"`
}

// ServiceAllocation selects the namespaces for which a pool is; without namespaces it is for all.
type ServiceAllocation struct {
	// Priority orders the pools for a Service: the lowest first, and 0 after all others.
	Priority   int      `json:"priority"`
	Namespaces []string `json:"namespaces"`
}

// setDefaults sets the defaults of a list's element before it is read.
func (p *AddressPool) setDefaults() { p.AutoAssign = true }

// spec returns the pool in the allocator's form.
func (p *AddressPool) spec() pools.Spec {
	s := pools.Spec{Addresses: p.Addresses, AutoAssign: &p.AutoAssign, AvoidBuggyIPs: p.AvoidBuggyIPs}
	if p.ServiceAllocation.Priority != 0 || len(p.ServiceAllocation.Namespaces) > 0 {
		s.ServiceAllocation = &pools.ServiceAllocation{Priority: p.ServiceAllocation.Priority,
			Namespaces: p.ServiceAllocation.Namespaces}
	}
	return s
}

// Pools returns addressPools in the allocator's form. They must be valid.
func (c *Configuration) Pools() (list []*pools.Pool) {
	for i := range c.AddressPools {
		p := &c.AddressPools[i]
		pool, err := pools.New(p.Name, p.spec())
		if err != nil {
			panic("config: Validate accepted an invalid pool; add the missing check: " + err.Error())
		}
		list = append(list, pool)
	}
	return list
}

// addressPools checks the pools: each by itself, and that no two share a name or an address.
func (k *check) addressPools(c *Configuration) {
	var before []*pools.Pool
	var at []int // indexes in list of the pools before
	for i := range c.AddressPools {
		p := &c.AddressPools[i]
		path := fmt.Sprintf("addressPools[%d]", i)
		problems := len(k.errs)
		k.required(path + ".name")
		k.required(path + ".addresses")
		k.rule(path+".serviceAllocation.priority", func(s *schema) { s.Minimum = new(int) })
		if p.Name == "" {
			k.fail(path+".name", "is missing, Services select a pool by its name")
		}
		if len(p.Addresses) == 0 {
			k.fail(path+".addresses", "is empty, list prefixes such as 192.0.2.0/24 or ranges")
		}
		for j, text := range p.Addresses {
			at := fmt.Sprintf("%s.addresses[%d]", path, j)
			k.pattern(at, `^[0-9A-Fa-f:.\s]+(/[0-9]+\s*|-[0-9A-Fa-f:.\s]+)$`)
			if err := pools.CheckAddresses(text); err != nil {
				k.fail(at, "%v", err)
			}
		}
		if n := p.ServiceAllocation.Priority; n < 0 {
			k.fail(path+".serviceAllocation.priority", "is %d, choose 0 or more", n)
		} else if n > 0 && len(p.ServiceAllocation.Namespaces) == 0 {
			k.fail(path+".serviceAllocation.priority", "is %d without namespaces, list namespaces for the pool", n)
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
				k.fail(path+".name", "is %s, like that of addressPools[%d], rename one", pool.Name, at[n])
			}
			if a, overlap := pool.Overlaps(q); overlap {
				k.fail(path+".addresses", "has %s, like addressPools[%d], remove it from one", a, at[n])
			}
		}
		before, at = append(before, pool), append(at, i)
	}
	if len(c.AddressPools) > 0 && c.Manifests.Directory == "" {
		k.fail("addressPools", "is for Services in manifests, but manifests.directory is empty; for Services of an "+
			"API server sluice-controller has pools")
	}
}
