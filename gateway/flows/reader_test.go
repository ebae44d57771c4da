package flows

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/internal/boottime"
	"sluice.dev/sluice/nat/header"
)

// TestReaderClosed: a call that still reads flows when the table is about to be unmapped gets none.
func TestReaderClosed(t *testing.T) {
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts()})
	must(t, err)
	r, err := NewReader(table, new(services.Handle))
	must(t, err)
	found := 0
	create(t, table, true, &flowtable.NewFlow{
		Client: header.Tuple{Src: header.AddrFrom(netip.MustParseAddr("198.51.100.7")), SrcPort: 999,
			Dst: header.AddrFrom(netip.MustParseAddr("203.0.113.9")), DstPort: 80, Proto: header.ProtoTCP},
		Backend: header.AddrFrom(netip.MustParseAddr("10.0.0.5")), BackendPort: 8080,
		Source:  header.AddrFrom(netip.MustParseAddr("192.0.2.20")),
		Service: 1, BackendRef: 1, Ports: flowtable.Ports{First: 20000, Count: 1000, Stride: 1},
	})
	r.all(func(*flowtable.Info) { found++ })
	if found != 1 {
		t.Fatalf("%d flows before, want 1", found)
	}
	r.Close()
	r.all(func(*flowtable.Info) { t.Error("a flow is read") })
	_, err = r.delete(t.Context(), flowtable.EndDeleted, 0, func(*flowtable.Info) bool { return true })
	if !errors.Is(err, errClosed) {
		t.Errorf("delete: %v", err)
	}
}

// TestReaderAndFlowLog: the end of many flows waits for a flow log that is slow, which then has all
// ends, and about once for one that hangs, which loses them.
func TestReaderAndFlowLog(t *testing.T) {
	const flows = 6 * 256
	for name, reads := range map[string]bool{"slow": true, "hangs": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 2 * flows, HalfOpen: 2 * flows,
					Timeouts: flowtable.DefaultTimeouts()})
				must(t, err)
				log, err := table.StartLog(512, make([]byte, table.AccountBytes()), false)
				must(t, err)
				r, err := NewReader(table, new(services.Handle))
				must(t, err)
				defer r.Close()
				for i := range uint16(flows) {
					create(t, table, false, &flowtable.NewFlow{
						Client: header.Tuple{Src: header.AddrFrom4([4]byte{198, 51, 100, 7}), SrcPort: 1 + i,
							Dst: header.AddrFrom4([4]byte{203, 0, 113, 9}), DstPort: 80, Proto: header.ProtoTCP},
						Backend: header.AddrFrom4([4]byte{10, 0, 0, 5}), BackendPort: 8080,
						Source: header.AddrFrom4([4]byte{192, 0, 2, 20}), SourcePort: 1 + i,
					})
				}
				log.Read(func(*flowtable.Event) {})
				before, ends := log.Lost(), 0
				ctx, cancel := context.WithCancel(t.Context())
				var reading sync.WaitGroup
				read := func() {
					log.Read(func(e *flowtable.Event) {
						if !e.Begins {
							ends++
						}
					})
				}
				reading.Go(func() {
					for reads && ctx.Err() == nil {
						time.Sleep(300 * time.Millisecond)
						read()
					}
				})
				began := time.Now()
				n, err := r.DeleteClients(ctx, func(netip.Addr) bool { return true })
				took := time.Since(began)
				cancel()
				reading.Wait()
				read()
				lost := int(log.Lost() - before)
				if err != nil || n != flows || ends+lost != flows || reads != (lost == 0) {
					t.Errorf("%d of %d flows ended: %d lines, %d lost: %v", n, flows, ends, lost, err)
				}
				if took > 2*logPatience {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestReaderAdopts: a flow that is not bound gets the backend of its tuples. A flow that is bound,
// or that has no backend any more, does not change.
func TestReaderAdopts(t *testing.T) {
	of := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	handle := new(services.Handle)
	vip, there, gone := of("203.0.113.9"), of("10.0.0.5"), of("10.0.0.6")
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, IPv6Flows: 1024,
		Timeouts: flowtable.DefaultTimeouts()})
	must(t, err)
	r, err := NewReader(table, handle)
	must(t, err)
	defer r.Close()
	b := services.NewBuilder(nil)
	be := services.Backend{Addr: there, Port: 8080, Service: 3, Ref: services.MakeBackendRef(5, 1)}
	b.SetBackend(be)
	b.SetFrontend(&services.Frontend{
		Key:     services.FrontendKey{Addr: vip, Port: 80, Proto: header.ProtoTCP},
		Service: &services.Service{ID: 3, Backends: []services.BackendRef{be.Ref}},
	})
	handle.Store(b.Build())
	for i, backend := range []header.Addr{there, there, gone, there} {
		create(t, table, i == 3, &flowtable.NewFlow{ // no owner, as recovered
			Client: header.Tuple{Src: of("198.51.100.7"), SrcPort: uint16(1000 + i), Dst: vip, DstPort: 80,
				Proto: header.ProtoTCP},
			Backend: backend, BackendPort: 8080, Source: of("192.0.2.20"), Ports: flowtable.Ports{First: 20000,
				Count: 1000, Stride: 1},
		})
	}
	if n, load := r.Adopt(), table.Loads()[5].Load(); n != 2 || load != 2 {
		t.Errorf("%d adopted, a load of %d, want 2 of each", n, load)
	}
	if n, load := r.Adopt(), table.Loads()[5].Load(); n != 0 || load != 2 {
		t.Errorf("once more: %d adopted, a load of %d, want 0 and 2", n, load)
	}
	r.all(func(f *flowtable.Info) {
		want := uint32(be.Ref)
		if f.Client.SrcPort >= 1002 {
			want = 0
		}
		if f.Backend != want || (want != 0) != (f.Service == 3) {
			t.Errorf("the flow from port %d has service %d and backend %#x, want backend %#x", f.Client.SrcPort,
				f.Service, f.Backend, want)
		}
	})
}

// TestReaderCharges: a flow that stood under an earlier process counts to the limits of its service
// once it is adopted.
func TestReaderCharges(t *testing.T) {
	of := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	handle, vip, client := new(services.Handle), of("203.0.113.9"), of("198.51.100.7")
	table, err := flowtable.NewHeap(flowtable.Config{IPv4Flows: 1024, Timeouts: flowtable.DefaultTimeouts()})
	must(t, err)
	r, err := NewReader(table, handle)
	must(t, err)
	defer r.Close()
	b := services.NewBuilder(nil)
	be := services.Backend{Addr: of("10.0.0.5"), Port: 8080, Service: 3, Ref: services.MakeBackendRef(5, 1)}
	svc := &services.Service{
		ID: 3, Backends: []services.BackendRef{be.Ref}, Limits: services.Limits{SourceConnections: 9},
	}
	b.SetBackend(be)
	b.SetService(svc)
	b.SetFrontend(&services.Frontend{
		Key: services.FrontendKey{Addr: vip, Port: 53, Proto: header.ProtoUDP}, Service: svc,
	})
	handle.Store(b.Build())
	h, err := table.Register()
	must(t, err)
	now := flowtable.Time(boottime.Nanos())
	h.Enter(now)
	for i := range 2 {
		ref, status := h.Create(now, &flowtable.NewFlow{ // no owner, as recovered
			Client: header.Tuple{Src: client, SrcPort: uint16(1000 + i), Dst: vip, DstPort: 53,
				Proto: header.ProtoUDP},
			Backend: be.Addr, BackendPort: be.Port, Source: of("192.0.2.20"),
			Ports: flowtable.Ports{First: 20000, Count: 1000, Stride: 1},
		})
		if status != flowtable.Created {
			t.Fatal(status)
		}
		if i == 0 { // the other one does not stand
			h.Observe(ref, flowtable.ReplySide, flowtable.Segment{}, now)
			h.Observe(ref, flowtable.ClientSide, flowtable.Segment{}, now)
		}
	}
	h.Leave()
	for range 2 {
		r.Adopt()
		if source, all := table.SourceUse(&client, false, 3).Flows, table.ServiceUse(3).Flows; source != 1 || all != 1 {
			t.Errorf("the source has %d flows and the service %d, want 1 of each", source, all)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
