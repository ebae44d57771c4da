package members

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"sluice.dev/sluice/gateway/peers"
	"sluice.dev/sluice/internal/wake"
)

// listenEvery is the pause between two attempts to open the listener.
const listenEvery = time.Second

// serve accepts streams of the other gateways until ctx is done. The address may still be in use by
// a process that ends, or may not exist yet: forwarding does not depend on it.
func (m *Members) serve(ctx context.Context) {
	for ctx.Err() == nil {
		err := m.accept(ctx)
		if ctx.Err() != nil {
			return
		}
		m.noteListener(err)
		wake.After(ctx, listenEvery)
	}
}

func (m *Members) accept(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", m.self.Address.String())
	if err != nil {
		return err
	}
	m.noteListener(nil)
	return m.transport.Serve(ctx, l, func(from peers.Peer, s *peers.Stream) error {
		m.mu.Lock()
		i, found := m.others.find(from.Name)
		m.mu.Unlock()
		if !found {
			return fmt.Errorf("%s was removed from the group", from.Name)
		}
		return m.exchange.Accept(i, s)
	})
}

// noteListener stores the reason that the listener is not open, for status, and logs a new one;
// nil: the listener is open.
func (m *Members) noteListener(err error) {
	why := ""
	if err != nil {
		why = err.Error()
	}
	m.mu.Lock()
	before := m.listen
	m.listen = why
	m.mu.Unlock()
	if why != "" && why != before {
		m.c.Log.Error("other gateways cannot connect; it is tried again", "address", m.self.Address, "error", why)
	}
}

// openAddresses opens source addresses once this gateway knows all flows with them.
func (m *Members) openAddresses(ctx context.Context) {
	const often, rarely = 100 * time.Millisecond, 10 * time.Second
	failed := ""
	for next := often; ; {
		if !wake.After(ctx, next) {
			return
		}
		if n := m.refusal.Swap(0); n != 0 && m.joins() {
			if err := m.raise(n); err != nil && err.Error() != failed {
				failed = err.Error()
				m.c.Log.Error("another gateway knows a later incarnation of this one, and refuses it; it is tried "+
					"again", "error", err)
			}
		}
		v := m.view.Load()
		if next = often; !v.Complete || !v.closed() {
			continue
		}
		next = rarely // an address stays closed as long as it has flows, perhaps for days
		opened, err := m.sources.AllReached(m.inUse)
		if err != nil && err.Error() != failed {
			failed = err.Error()
			m.c.Log.Error("no flow is copied to other gateways; it is tried again", "error", err)
		}
		if opened {
			m.c.Log.Info("flows are copied to the other gateways", "addresses", m.sources.Addresses())
			m.c.Opened()
		}
	}
}

// joins reports whether this process still joins the group: until shortly after another gateway has
// first accepted it. If a gateway reports a later incarnation after that, the incarnation belongs
// to a process that has replaced this one, which must stay refused.
func (m *Members) joins() bool {
	const moment = 10 * time.Second // the other gateways may know different incarnations
	at := m.joined.Load()
	return at == 0 || now()-at < int64(moment)
}

// raise takes a higher incarnation than one that another gateway knows, and begins new streams with
// all gateways.
func (m *Members) raise(above uint64) error {
	if raised, err := m.sources.Raise(above); !raised {
		return err
	}
	m.exchange.Do(func() {
		for i, o := range m.others {
			if o != nil && !o.removed {
				m.exchange.Replace(i, m.peerOf(i, o))
			}
		}
	})
	return nil
}

// inUse reports whether a port of an address may be in use or held. It counts flows before held
// ports: a flow that ends in between holds its port.
func (m *Members) inUse(a netip.Addr) bool { return m.c.InUse(a) > 0 || m.c.Table.HeldPorts() > 0 }
