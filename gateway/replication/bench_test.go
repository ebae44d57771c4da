package replication

import (
	"testing"
	"time"

	"sluice.dev/sluice/flowtable"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/nat/header"
)

// benchFlows is how many flows live at once.
const benchFlows = 100_000

func benchGateway(b testing.TB, own int) *Flows {
	table, err := flowtable.NewHeap(flowtable.Config{
		IPv4Flows: 4 * benchFlows, HalfOpen: 2 * benchFlows, Timeouts: flowtable.DefaultTimeouts(), Group: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	f, err := New(Config{
		Table: table, Workers: 1, Sources: sources(own), Others: []Other{{Sources: sources(1 - own)}}, Complete: true,
		Now: func() int64 { return int64(time.Hour) },
	})
	if err != nil {
		b.Fatal(err)
	}
	return f
}

// benchTuples returns the tuples of the n-th flow of a gateway.
func benchTuples(own int, n uint32) (client, reply header.Tuple) {
	a := func(b0, b1, b2, b3 byte) header.Addr { return header.AddrFrom4([4]byte{b0, b1, b2, b3}) }
	client = header.Tuple{Src: a(198, 18, byte(n>>16), byte(n>>8)), SrcPort: 1024 + uint16(n&255),
		Dst: a(203, 0, 113, 10), DstPort: 80, Proto: header.ProtoTCP}
	reply = header.Tuple{Src: a(10, 0, 1, byte(n/60000)), SrcPort: 8080, Dst: a(192, 0, 2, byte(1+own)),
		DstPort: uint16(1 + n%60000), Proto: header.ProtoTCP}
	return client, reply
}

// BenchmarkCopy is what a member does for each flow of another gateway: Set and Clear.
func BenchmarkCopy(b *testing.B) {
	f := benchGateway(b, 0)
	c := f.Copies(0)
	c.Connected(1)
	c.Apply(&group.Message{Kind: group.All})
	n, m := uint32(0), group.Message{Kind: group.Set, Record: group.Record{State: flowtable.Established}}
	for b.Loop() {
		at := n % benchFlows
		if n >= benchFlows {
			c.Apply(&group.Message{Kind: group.Clear, Slot: at})
		}
		m.Slot = at
		m.Record.Client, m.Record.Reply = benchTuples(1, n)
		if r, _ := c.Apply(&m); r != group.Accepted {
			b.Fatal(r)
		}
		if n++; n%64 == 0 {
			f.rest()
		}
	}
}

// BenchmarkOwner is what an owner does for each own flow besides a worker: Begin, Set, End, Clear.
func BenchmarkOwner(b *testing.B) {
	f := benchGateway(b, 0)
	l := f.Ledger()
	l.Connected(0)
	var seq uint64
	var messages []group.Message
	exchange := func() {
		f.Step()
		messages = l.Send(0, f.Read, messages[:0], 1024)
		if len(messages) > 0 {
			seq = messages[len(messages)-1].Seq
			l.Applied(0, seq, nil)
		}
		f.rest()
	}
	exchange()
	w, err := f.table.Register()
	if err != nil {
		b.Fatal(err)
	}
	n := uint32(0)
	for b.Loop() {
		w.Enter(f.now())
		client, reply := benchTuples(0, n)
		r, s := w.Create(f.now(), &flowtable.NewFlow{Client: client, Backend: reply.Src, BackendPort: 8080,
			Source: reply.Dst, SourcePort: reply.DstPort, Tracked: true})
		if s != flowtable.Created {
			b.Fatal(s)
		}
		w.Observe(r, flowtable.ReplySide, flowtable.Segment{Flags: header.TCPSYN | header.TCPACK}, f.now())
		if n >= benchFlows {
			client, _ = benchTuples(0, n-benchFlows)
			if r, _ := w.Lookup(w.Hash(&client), &client, f.now()); r != 0 {
				w.Delete(r)
			}
		}
		w.Leave()
		if n++; n%64 == 0 {
			exchange()
		}
	}
	b.ReportMetric(float64(f.table.HeldPorts()), "held")
}

// BenchmarkRecover is what a process that takes over does with the table before its workers run: of
// a million flows, half are copies.
func BenchmarkRecover(b *testing.B) {
	const flows = 1_000_000
	table, err := flowtable.NewHeap(flowtable.Config{
		IPv4Flows: flows, HalfOpen: flows, Timeouts: flowtable.DefaultTimeouts(), Group: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	h, err := table.Register()
	if err != nil {
		b.Fatal(err)
	}
	now := flowtable.Time(time.Hour)
	for n := range uint32(flows) {
		if n%64 == 0 {
			h.Enter(now)
		}
		client, reply := benchTuples(int(n%2), n)
		record := group.Record{Client: client, Reply: reply, State: flowtable.Established}
		s := flowtable.Created
		if n%2 == 0 {
			_, s = h.Restore(now, &record)
		} else {
			_, s = h.Copy(now, 1, &record)
		}
		if s != flowtable.Created && s != flowtable.TableFull { // the chain of a key is full by chance
			b.Fatal(n, s)
		}
	}
	h.Leave()
	f, err := New(Config{
		Table: table, Workers: 1, Sources: sources(0), Others: []Other{{Sources: sources(1)}}, Complete: true,
		Unowned: true, Now: func() int64 { return int64(now) },
	})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		f.Recover()
	}
	b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/recover")
}
