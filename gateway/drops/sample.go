package drops

import (
	"net/netip"
	"time"

	"sluice.dev/sluice/fastpath/capture"
	"sluice.dev/sluice/fastpath/services"
	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/nat/reason"
)

// Sample is a dropped packet that stands for Weight packets with the same reason.
type Sample struct {
	At       time.Time // with the monotonic clock's reading
	Reason   reason.Drop
	Weight   uint64
	Protocol uint8 // 0 if the packet has no valid IP header
	// Client and VIP are the ends of the client's packets, if the packet is of a flow, or to or
	// from a frontend. Reply: the packet was towards the client. SNAT and Backend are known of a
	// flow.
	Client, VIP, SNAT, Backend netip.AddrPort
	Reply                      bool
	Service                    string // of VIP; "" if there is none, or it is gone
	// Source and Destination are the packet's, if Client is not known. A later fragment has no
	// ports.
	Source, Destination netip.AddrPort
}

// Sender returns the client, or the source of a packet without one; invalid if the packet has none.
func (s *Sample) Sender() netip.Addr {
	if s.Client.IsValid() {
		return s.Client.Addr()
	}
	return s.Source.Addr()
}

// sampleOf finds the client and the Service of a record.
func sampleOf(rec *capture.Record, snapshot *services.Snapshot) (s Sample) {
	f := &rec.Flow
	s.Reason, s.Weight, s.Protocol = rec.Reason, rec.Weight, f.Proto
	if f.Known {
		s.Client, s.VIP, s.Reply = f.Client.AddrPort(), f.Frontend.AddrPort(), f.Reply
		if f.Backend != f.Frontend { // a flow with direct return is not translated
			s.SNAT, s.Backend = f.Source.AddrPort(), f.Backend.AddrPort()
		}
		s.Service = serviceOf(f, snapshot)
		return s
	}
	if f.Client == (flowtable.Socket{}) && f.Frontend == (flowtable.Socket{}) {
		s.Protocol = 0
		return s
	}
	t := tupleOf(&f.Client, &f.Frontend, f.Proto)
	if quoted := rec.Quoted != ([2]flowtable.Socket{}); quoted {
		t = tupleOf(&rec.Quoted[0], &rec.Quoted[1], rec.QuotedProto)
	}
	back := t.Reverse()
	switch to, from := snapshot.Frontend(&t), snapshot.Frontend(&back); {
	case to != nil:
		s.Client, s.VIP, s.Service = netipOf(&t.Src, t.SrcPort), netipOf(&t.Dst, t.DstPort), to.Service.FullName()
	case from != nil:
		s.Client, s.VIP, s.Service = netipOf(&t.Dst, t.DstPort), netipOf(&t.Src, t.SrcPort), from.Service.FullName()
		s.Reply = true
	default:
		s.Source, s.Destination = f.Client.AddrPort(), f.Frontend.AddrPort()
	}
	return s
}

// serviceOf returns the name of a flow's service port: by its number, or by its frontend if an
// earlier process has made the flow.
func serviceOf(f *capture.Flow, snapshot *services.Snapshot) string {
	if p := snapshot.Service(services.ServiceID(f.Service)); f.Service != 0 && p != nil {
		return p.FullName()
	}
	t := tupleOf(&f.Client, &f.Frontend, f.Proto)
	if to := snapshot.Frontend(&t); to != nil {
		return to.Service.FullName()
	}
	return ""
}

func tupleOf(src, dst *flowtable.Socket, proto uint8) header.Tuple {
	return header.Tuple{Src: src.Addr(), Dst: dst.Addr(), SrcPort: src.Port, DstPort: dst.Port, Proto: proto,
		V6: !dst.Is4()}
}

func netipOf(a *header.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a.Netip(), port) }
