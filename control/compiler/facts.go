package compiler

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"sluice.dev/sluice/control/maglev"
	"sluice.dev/sluice/control/steer"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/nat/header"
)

// facts serializes the parts of a snapshot that a compiled unit has set, without the numbers, which
// differ between compilers.
type facts struct {
	*Compiler
	unit *unit
	buf  []byte
	// skipTables leaves out large tables, which verifyTables has compared.
	skipTables bool
	sums       map[any][sha256.Size]byte // see once
}

// differ returns the name of the first part in which a compiled unit differs from the result of a
// fresh compiler for the same objects; "" if they are equal.
func (f *facts) differ(u *unit, want *facts) string {
	got, c, fresh := f, f.Compiler, want.Compiler
	v := fresh.units.byKey[u.key]
	if v == nil {
		return "objects"
	}
	got.unit, want.unit = u, v
	keys := slices.Clone(u.held)
	for _, cl := range v.claims {
		keys = append(keys, cl.key)
	}
	for _, part := range [...]struct {
		name string
		add  func(*facts)
	}{
		{"service ports", (*facts).addPorts},
		{"endpoints", (*facts).addBackends},
		{"frontends", func(f *facts) { f.addFrontends(keys) }},
		{"problems", (*facts).addProblems},
	} {
		got.buf, want.buf = got.buf[:0], want.buf[:0]
		part.add(got)
		part.add(want)
		if !bytes.Equal(got.buf, want.buf) {
			return part.name
		}
	}
	if slices.ContainsFunc(keys,
		func(k services.FrontendKey) bool { return c.snapshot.Owned(k.Addr) != c.addrs.own[k.Addr].all() }) {
		return "addresses"
	}
	if !c.catches(v, fresh) {
		return "sources of replies"
	}
	if c.healthChecks.of[u] != fresh.healthChecks.of[v] {
		return "answers to health checks"
	}
	return ""
}

// catches reports whether the set of kept sources has all sources of a unit. It also has sources of
// other units.
func (c *Compiler) catches(v *unit, fresh *Compiler) bool {
	for _, p := range v.ports {
		for f := range p.families {
			for _, m := range p.families[f].members {
				k := steer.KeepSource{Addr: m.addr, Port: m.port, Proto: p.spec.Proto}
				if fresh.kept.count[k] > 0 && c.kept.count[k] <= 0 {
					return false
				}
			}
		}
	}
	return true
}

func (f *facts) num(n uint64)       { f.buf = binary.BigEndian.AppendUint64(f.buf, n) }
func (f *facts) text(s string)      { f.num(uint64(len(s))); f.buf = append(f.buf, s...) }
func (f *facts) addr(a header.Addr) { f.buf = append(f.buf, a[:]...) }

func (f *facts) bit(b bool) {
	if b {
		f.num(1)
	} else {
		f.num(0)
	}
}

func (f *facts) addPorts() {
	for _, p := range f.unit.ports {
		s := f.snapshot.Service(p.id)
		if s == nil {
			f.text("none")
			continue
		}
		f.text(s.Namespace)
		f.text(s.Name)
		f.text(s.PortName)
		for _, n := range [...]uint64{uint64(s.Proto), uint64(s.Port), s.Identity, uint64(s.AffinitySeconds),
			uint64(s.Scheduler), uint64(s.Limits.SourceConnections),
			uint64(s.Limits.SourceNewConnections),
			uint64(s.Limits.Connections), uint64(s.Limits.NewConnections),
			uint64(s.Topology[0]), uint64(s.Topology[1]), uint64(len(s.Backends))} {
			f.num(n)
		}
		f.bit(s.ProxyProtocol)
		f.bit(s.Direct)
		f.bit(s.LocalExternal)
		f.bit(s.LocalInternal)
		f.bit(s.ID == p.id && s == p.service)
	}
}

func (f *facts) addBackends() {
	for _, p := range f.unit.ports {
		s := f.snapshot.Service(p.id)
		if s == nil {
			continue
		}
		for _, ref := range s.Backends {
			f.backend(ref)
			if b := f.snapshot.Backend(ref); b != nil {
				f.num(uint64(b.Flags))
				f.num(uint64(b.Weight))
				f.bit(b.Service == p.id)
			}
		}
	}
}

func (f *facts) backend(ref services.BackendRef) {
	b := f.snapshot.Backend(ref)
	if b == nil {
		f.text("none")
		return
	}
	f.addr(b.Addr)
	f.num(uint64(b.Port)<<8 | uint64(b.Proto))
}

func (f *facts) addFrontends(keys []services.FrontendKey) {
	for _, k := range keys {
		fe, ok := f.snapshot.FrontendByKey(k)
		if !ok {
			f.text("none")
			continue
		}
		f.text(fe.Service.Namespace)
		f.text(fe.Service.Name)
		if (unitKey{fe.Service.Namespace, fe.Service.Name}) != f.unit.key {
			continue // another unit has it, which is compared in its turn
		}
		f.bit(fe.Key == k && f.snapshot.Service(fe.Service.ID) == fe.Service)
		f.bit(f.addrs.own[k.Addr].all()&services.AddrVIP != 0)
		f.num(uint64(fe.Kind))
		f.rule(&fe.Outside)
		f.bit(fe.Pod == fe.Outside)
		if fe.Pod != fe.Outside {
			f.rule(&fe.Pod)
		}
		f.ranges(fe.Allowed)
	}
}

func (f *facts) rule(r *services.Rule) {
	f.bit(r.KeepClient)
	if r.Set == nil {
		f.text("none")
		return
	}
	f.once(r.Set, func() { f.set(r.Set) })
}

func (f *facts) set(s *services.EndpointSet) {
	f.num(uint64(s.Empty))
	for _, ref := range s.Backends {
		f.backend(ref)
	}
	for _, w := range s.Weights {
		f.num(uint64(w))
	}
	if f.skipTables && maglev.Size(len(s.Backends)) > f.tables.inlineSlots {
		return
	}
	f.num(uint64(len(s.Table)))
	for _, slot := range s.Table {
		f.buf = binary.BigEndian.AppendUint16(f.buf, slot)
	}
}

func (f *facts) ranges(p *services.Prefixes) {
	common, also := p.Parts()
	f.once(common, func() {
		for _, prefix := range common.List() {
			f.text(prefix.String())
		}
	})
	f.text(also.String())
}

// once adds a digest of the bytes that add appends. Many frontends share one key, so the digest is
// computed once per key, which must be a pointer.
func (f *facts) once(key any, add func()) {
	sum, known := f.sums[key]
	if !known {
		outer := f.buf
		f.buf = nil
		add()
		sum = sha256.Sum256(f.buf)
		f.buf = outer
		if f.sums == nil {
			f.sums = map[any][sha256.Size]byte{}
		}
		f.sums[key] = sum
	}
	f.buf = append(f.buf, sum[:]...)
}

func (f *facts) addProblems() {
	for _, p := range f.unit.problems {
		f.text(p.String())
	}
}
