package flowtable

import (
	"testing"

	"sluice.dev/sluice/flowtable/conn"
	"sluice.dev/sluice/nat/header"
)

// TestForeign: which segments of a backend answer another SYN than the SYN that opened the flow, by
// the state of the flow and the packets of the client. The result is the same after recovery, and
// in a table of another size.
func TestForeign(t *testing.T) {
	const isn, other = 0xffffffff, 0x1234
	const synAck, ack, rst = header.TCPSYN | header.TCPACK, header.TCPACK, header.TCPRST
	segment := func(flags uint8, acknowledges uint32) Segment { return Segment{Flags: flags, Ack: acknowledges} }
	answered := Segment{Flags: synAck, Ack: 0}
	for _, tt := range []struct {
		name   string
		kept   bool
		before func(h *Handle, r Ref)
		s      Segment
		want   bool
	}{
		{"its SYN-ACK", true, nil, segment(synAck, 0), false},
		{"another SYN-ACK", true, nil, segment(synAck, other), true},
		{"a challenge", true, nil, segment(ack, other), true},
		{"its RST", true, nil, segment(rst|ack, 0), false},
		{"another RST", true, nil, segment(rst|ack, other), true},
		{"an RST that acknowledges nothing", true, nil, segment(rst, 0), true},
		{"the number is not known", false, nil, segment(synAck, other), false},
		{"another SYN-ACK later", true, func(h *Handle, r Ref) { h.Observe(r, ReplySide, answered, bootTime) },
			segment(synAck, other), true},
		{"an ACK later", true, func(h *Handle, r Ref) { h.Observe(r, ReplySide, answered, bootTime) },
			segment(ack, other), false},
		{"the SYN again", true, func(h *Handle, r Ref) { h.Reopens(r, isn, false) }, segment(synAck, other), true},
		{"another SYN", true, func(h *Handle, r Ref) { h.Reopens(r, 7, false) }, segment(synAck, other), false},
		{"the SYN with data", true, func(h *Handle, r Ref) { h.Reopens(r, isn, true) }, segment(synAck, other), false},
	} {
		for _, v6 := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				c := Config{IPv4Flows: 100, IPv6Flows: 100, HalfOpen: 100, Timeouts: DefaultTimeouts()}
				tb, h := testTableOf(t, c)
				n := newFlow(header.ProtoTCP, v6, 1)
				n.SYN, n.HasSYN = isn, tt.kept
				r := h.mustCreate(t, bootTime, n)
				if tt.before != nil {
					tt.before(h, r)
				}
				check := func(when string, h *Handle) {
					t.Helper()
					ref, _ := h.Lookup(h.Hash(&n.Client), &n.Client, bootTime)
					if got := h.Foreign(ref, &tt.s); ref == 0 || got != tt.want {
						t.Errorf("%s: foreign %v, want %v", when, got, tt.want)
					}
				}
				check("at first", h)
				h.Leave()
				more := c
				more.IPv4Flows, more.IPv6Flows = 300, 300
				size, err := Size(more)
				if err != nil {
					t.Fatal(err)
				}
				moved, _, err := moveFlows(tb, func(m conn.Meta) conn.Meta { return m }, heapMemory(size), more,
					bootTime, false)
				if err != nil {
					t.Fatal(err)
				}
				for when, next := range map[string]func() (*Table, error){
					"moved":     func() (*Table, error) { return moved, nil },
					"recovered": func() (*Table, error) { tb, _, err := Recover(tb.mem, c, bootTime); return tb, err },
				} {
					tb, err := next()
					if err != nil {
						t.Fatal(err)
					}
					g, err := tb.Register()
					if err != nil {
						t.Fatal(err)
					}
					g.Enter(bootTime)
					check(when, g)
					g.Leave()
				}
			})
		}
	}
}

// TestProxiedAnswers: of a flow with a PROXY header, no packet changes the number of its opening
// SYN: the word links free records as soon as another handle has ended the flow. Another SYN's
// answer is told apart, and is not the one that the flow notes.
func TestProxiedAnswers(t *testing.T) {
	const syn, isn = uint32(0xfffffffe), 500
	_, h := testTableOf(t, Config{IPv4Flows: 100, IPv6Flows: 100, HalfOpen: 100, Timeouts: DefaultTimeouts()})
	n := newFlow(header.ProtoTCP, false, 1)
	n.SYN, n.HasSYN, n.Proxied = syn, true, true
	r := h.mustCreate(t, bootTime, n)
	want := func(when string, ack uint32, opening, later bool) {
		t.Helper()
		s := Segment{Flags: header.TCPSYN | header.TCPACK, Seq: isn, Ack: ack}
		if o, l := h.Answers(r, &s); o != opening || l != later {
			t.Errorf("%s, ACK %#x: answers %v, later %v", when, ack, o, l)
		}
	}
	want("at first", syn+1, true, false)
	want("at first", 7, false, false)
	h.Reopens(r, 6, false)
	want("after another SYN", 7, false, true)
	other := Segment{Flags: header.TCPSYN | header.TCPACK, Seq: isn, Ack: 7}
	h.Observe(r, ReplySide, other, bootTime)
	want("after the other answer", syn+1, true, false)
	if h.Answered(r, &other) {
		t.Error("the other SYN's answer is noted")
	}
	own := Segment{Flags: header.TCPSYN | header.TCPACK, Seq: isn + 1, Ack: syn + 1}
	h.Observe(r, ReplySide, own, bootTime)
	if want("after both answers", syn+1, true, false); !h.Answered(r, &own) {
		t.Error("its own answer is not noted")
	}
}
