package wire

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/gateway/group"
	"sluice.dev/sluice/nat/header"
	"sluice.dev/sluice/test/bed/size"
)

// flow returns a record; addresses are of one family.
func flow(proto uint8, s conn.State, isn uint32, client, vip, backend, source string) group.Record {
	a := func(s string) header.Addr { return header.AddrFrom(netip.MustParseAddr(s)) }
	v6 := netip.MustParseAddr(client).Is6()
	return group.Record{
		Client: header.Tuple{Src: a(client), Dst: a(vip), SrcPort: 41000, DstPort: 80, Proto: proto, V6: v6},
		Reply:  header.Tuple{Src: a(backend), Dst: a(source), SrcPort: 8080, DstPort: 2000, Proto: proto, V6: v6},
		State:  s, ISN: isn,
	}
}

var records = []group.Record{
	flow(header.ProtoTCP, conn.SynRecv, 77, "192.0.2.9", "198.51.100.1", "10.0.0.2", "10.9.0.1"),
	flow(header.ProtoTCP, conn.Established, 0, "2001:db8::9", "2001:db8:1::1", "fd00::2", "fd00:9::1"),
	flow(header.ProtoUDP, conn.UDPAssured, 0, "192.0.2.9", "198.51.100.1", "10.0.0.2", "10.9.0.1"),
	flow(header.ProtoSCTP, conn.Unconfirmed, 0, "2001:db8::9", "2001:db8:1::1", "fd00::2", "fd00:9::1"),
	flow(header.ProtoICMP, conn.ICMPEcho, 0, "192.0.2.9", "198.51.100.1", "10.0.0.2", "10.9.0.1"),
	flow(header.ProtoICMPv6, conn.ICMPEcho, 0, "2001:db8::9", "2001:db8:1::1", "fd00::2", "fd00:9::1"),
	proxied(flow(header.ProtoTCP, conn.Established, 78, "192.0.2.9", "198.51.100.1", "10.0.0.2", "10.9.0.1"), 9, false),
	proxied(flow(header.ProtoTCP, conn.FinClient, 0, "2001:db8::9", "2001:db8:1::1", "fd00::2", "fd00:9::1"), 9, true),
	proxied(flow(header.ProtoUDP, conn.UDPReplied, 0, "192.0.2.9", "198.51.100.1", "10.0.0.2", "10.9.0.1"), 0, false),
	reset(flow(header.ProtoTCP, conn.Established, 0, "2001:db8::9", "2001:db8:1::1", "fd00::2", "fd00:9::1"),
		conn.ReplySide),
}

// reset returns the record of a connection that an end has reset.
func reset(r group.Record, by conn.Side) group.Record {
	r.Reset, r.ResetBy = true, by
	return r
}

// proxied returns the record of a flow with a PROXY header.
func proxied(r group.Record, opening uint32, acked bool) group.Record {
	r.Proxied, r.Opening, r.HeaderAcked = true, opening, acked
	return r
}

var messages = []group.Message{
	{Kind: group.All, Seq: 1},
	{Kind: group.Set, Slot: 7, Seq: 2, Record: records[0]},
	{Kind: group.Set, Slot: 1<<32 - 1, Seq: 3, Record: records[1]},
	{Kind: group.Clear, Slot: 7, Seq: 4},
	{Kind: group.AllDone, Seq: 5},
	{Kind: group.Complete, Seq: 6},
}

func applied(seq uint64, remarks ...Remark) []byte {
	return AppendApplied(nil, &Acknowledgement{Sent: 1e9, Seq: seq, Remarks: remarks})
}

// frames returns one frame of each kind at least.
func frames() [][]byte {
	return [][]byte{
		AppendHello(nil, Greeting{Name: "gw-a", Incarnation: 3, Sources: 4}),
		AppendRecords(nil, messages),
		AppendBeat(nil, 1e9),
		applied(6, Remark{4, group.TableFull, 0}, Remark{2, group.Accepted, 300}, Remark{0, group.OtherFlow, 0}),
		AppendMine(nil, records, false),
		AppendMine(nil, nil, true),
		AppendCopyStates(nil, []group.CopyState{
			{Slot: 7, CopyState: conn.CopyState{State: conn.Established, Reset: true, ResetBy: conn.ReplySide}},
			{Slot: 1<<32 - 1, CopyState: conn.CopyState{State: conn.FinClient, Proof: true, Outlived: true,
				Asked: true, Lost: true, HeaderAcked: true}}}),
	}
}

// again decodes a frame and encodes it again. It returns nil if there is an error.
func again(frame []byte) []byte {
	switch KindOf(frame) {
	case Hello:
		if g, err := ReadHello(frame); err == nil {
			return AppendHello(nil, g)
		}
	case Records:
		if m, err := ReadRecords(frame, nil); err == nil {
			return AppendRecords(nil, m)
		}
	case CopyStates:
		if seen, err := ReadCopyStates(frame, nil); err == nil {
			return AppendCopyStates(nil, seen)
		}
	case Beat:
		if echo, err := ReadBeat(frame); err == nil {
			return AppendBeat(nil, echo)
		}
	case Applied:
		var a Acknowledgement
		if ReadApplied(frame, &a) == nil {
			return AppendApplied(nil, &a)
		}
	case Mine:
		if r, last, err := ReadMine(frame, nil); err == nil {
			return AppendMine(nil, r, last)
		}
	}
	return nil
}

func TestRoundTrip(t *testing.T) {
	for _, f := range frames() {
		if b := again(f); !bytes.Equal(b, f) {
			t.Errorf("frame %x\nis, decoded and encoded again, %x", f, b)
		}
	}
	if m, err := ReadRecords(AppendRecords(nil, messages), nil); err != nil || !reflect.DeepEqual(m, messages) {
		t.Errorf("messages %+v, %v\nwant %+v", m, err, messages)
	}
	r, last, err := ReadMine(AppendMine(nil, records, true), nil)
	if err != nil || !last || !reflect.DeepEqual(r, records) {
		t.Errorf("records %+v, %t, %v\nwant %+v", r, last, err, records)
	}
}

// TestMaxFrame: the longest Records has MaxFrame bytes and is read; one more message is an error.
func TestMaxFrame(t *testing.T) {
	many := make([]group.Message, MaxMessages+1)
	for i := range many {
		many[i] = group.Message{Kind: group.Set, Seq: uint64(i + 1), Record: records[7]}
	}
	longest := AppendRecords(nil, many[:MaxMessages])
	if got, err := ReadRecords(longest, nil); err != nil || len(got) != MaxMessages || len(longest) != MaxFrame {
		t.Errorf("%d bytes, %d messages, %v, want %d bytes", len(longest), len(got), err, MaxFrame)
	}
	for i := range many {
		many[i] = group.Message{Kind: group.Clear, Seq: uint64(i + 1)}
	}
	if _, err := ReadRecords(AppendRecords(nil, many), nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("%d messages: %v", len(many), err)
	}
}

// TestMalformed: frames that no gateway sends.
func TestMalformed(t *testing.T) {
	record := func(change func(r *group.Record)) []byte {
		r := records[0]
		change(&r)
		return AppendMine(nil, []group.Record{r}, true)
	}
	last := group.Message{Kind: group.All, Seq: 1<<64 - 1}
	mapped := AppendMine(nil, records[1:2], true)
	copy(mapped[2+7+16:], records[0].Client.Dst[:]) // the VIP of an IPv6 record
	for _, c := range []struct {
		name  string
		frame []byte
	}{
		{"empty", nil},
		{"no kind", []byte{0}},
		{"unknown kind", append([]byte{6}, frames()[1][1:]...)},
		{"no name", AppendHello(nil, Greeting{Incarnation: 1})},
		{"long name", AppendHello(nil, Greeting{Name: string(make([]byte, MaxName+1))})},
		{"no messages", frames()[1][:9]},
		{"sequence number 0", AppendRecords(nil, []group.Message{{Kind: group.All}})},
		{"overflow of numbers", AppendRecords(nil, []group.Message{last, last})},
		{"unknown message", AppendRecords(nil, []group.Message{{Kind: group.Complete + 1, Seq: 1}})},
		{"no state", record(func(r *group.Record) { r.State, r.ISN = conn.None, 0 })},
		{"unknown state", record(func(r *group.Record) { r.State, r.ISN = conn.NumStates, 0 })},
		{"state of UDP", record(func(r *group.Record) { r.State, r.ISN = conn.UDPNew, 0 })},
		{"state of SCTP", record(func(r *group.Record) { r.State, r.ISN = conn.Unconfirmed, 0 })},
		{"ISN of an established connection", record(func(r *group.Record) { r.State = conn.Established })},
		{"unknown protocol", record(func(r *group.Record) { r.Client.Proto, r.ISN = 47, 0 })},
		{"ICMPv6 over IPv4", record(func(r *group.Record) { r.Client.Proto, r.State, r.ISN = 58, conn.ICMPEcho, 0 })},
		{"IPv4-mapped address", mapped},
		{"RST of a connection that is over", record(func(r *group.Record) {
			r.State, r.ISN, r.Reset = conn.TimeWaitClient, 0, true
		})},
		{"an RST that is outlived", []byte{byte(CopyStates), 0, 0, 0, 7, byte(conn.Established), 2 | 8}},
		{"a side without an RST", []byte{byte(CopyStates), 0, 0, 0, 7, byte(conn.Established), 4}},
		{"unknown note", []byte{byte(CopyStates), 0, 0, 0, 7, byte(conn.Established), 128}},
		{"last is neither 0 nor 1", []byte{byte(Mine), 2}},
		{"refused twice", applied(9, Remark{1, group.TableFull, 0}, Remark{1, group.TableFull, 0})},
		{"refused before the first message", applied(2, Remark{2, group.TableFull, 0})},
		{"neither a reason nor an age", applied(2, Remark{1, group.Accepted, 0})},
		{"refused for an unknown reason", applied(2, Remark{1, group.MaxRefusal + 1, 0})},
	} {
		if b := again(c.frame); b != nil {
			t.Errorf("%s: %x was read", c.name, c.frame)
		}
	}
	for _, f := range frames() {
		for n := range f {
			if b := again(f[:n]); b != nil && !bytes.Equal(b, f[:n]) {
				t.Errorf("%d bytes of %x are read as %x", n, f, b)
			}
		}
	}
}

func TestOtherVersion(t *testing.T) {
	f := AppendHello(nil, Greeting{Name: "gw-a"})
	f[2] = Version + 1
	var v VersionError
	if _, err := ReadHello(f[:3]); !errors.As(err, &v) || v != Version+1 {
		t.Errorf("error %v, want a VersionError", err)
	}
}

// mutate changes, removes, inserts or repeats bytes of a frame.
func mutate(r *rand.Rand, f []byte) []byte {
	f = bytes.Clone(f)
	for range 1 + r.IntN(4) {
		i := r.IntN(len(f) + 1)
		switch r.IntN(5) {
		case 0:
			f = f[:i]
		case 1:
			f = append(f[:i], append([]byte{byte(r.Uint32())}, f[i:]...)...)
		case 2:
			f = append(f[:i], f[r.IntN(i+1):]...)
		default:
			if i < len(f) {
				f[i] ^= byte(1 << r.IntN(8))
			}
		}
	}
	return f
}

// TestMutatedFrames: a changed frame is an error, or another frame that a gateway may send. It is
// never read as a value whose encoding differs, and nothing panics.
func TestMutatedFrames(t *testing.T) {
	mutations := size.Runs(t, 20_000, 10_000)
	seed := rand.Uint64()
	t.Logf("%d mutations, seed %d", mutations, seed)
	r, all, read := rand.New(rand.NewPCG(seed, 0)), frames(), 0
	for range mutations {
		f := mutate(r, all[r.IntN(len(all))])
		if b := again(f); b != nil && !bytes.Equal(b, f) {
			t.Fatalf("%x is read as %x", f, b)
		} else if b != nil {
			read++
		}
	}
	t.Logf("%d were valid frames", read)
}

func FuzzFrame(f *testing.F) {
	for _, b := range frames() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		if b := again(frame); b != nil && !bytes.Equal(b, frame) {
			t.Errorf("%x is read as %x", frame, b)
		}
	})
}
