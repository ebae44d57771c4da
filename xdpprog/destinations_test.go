//go:build root

package xdpprog

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// ownMAC is the destination address of pkt.frame.
var ownMAC = MAC{0, 0, 0, 0, 0, 1}

// setDestinations is Port.SetDestinations for a program that is not attached.
func setDestinations(t testing.TB, c *ebpf.Collection, d Destinations) {
	t.Helper()
	p := &Port{name: "none", macs: c.Maps[steerMapMacs], vlans: c.Maps[steerMapVlans]}
	if err := p.SetDestinations(d); err != nil {
		t.Fatal(err)
	}
}

// tagged returns a frame with tags before its payload: TPID, TCI, and so on.
func tagged(frame []byte, tags ...uint16) []byte {
	var b []byte
	for _, v := range tags {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return slices.Insert(slices.Clone(frame), 12, b...)
}

// TestFramesOfOthers: the program takes a frame that a rule matches if it is for an address of the
// interface or of a device above it, and in no VLAN or in the VLAN of such a device. All others
// pass to the kernel and are counted.
func TestFramesOfOthers(t *testing.T) {
	const q, ad = 0x8100, 0x88a8
	mac := func(last int) MAC { return MAC{2, 0, 0, 0, 1, byte(last)} }
	vrrp := MAC{0, 0, 0x5e, 0, 1, 51}
	many := []MAC{ownMAC}
	for n := range MaxMACs - 1 {
		many = append(many, mac(n))
	}
	vlans := []VLAN{{{ID: 5}}, {{ID: 6, QinQ: true}}, {{ID: 7}, {ID: 8}}, {{ID: 9, QinQ: true}, {ID: 10}}}
	untagged := Destinations{MACs: []MAC{ownMAC}}
	withVRRP := Destinations{MACs: []MAC{ownMAC, vrrp}}
	inVLANs := Destinations{MACs: []MAC{ownMAC}, VLANs: vlans}
	for _, c := range []struct {
		name string
		of   Destinations
		to   MAC
		tags []uint16
		want bool
	}{
		{"own address", untagged, ownMAC, nil, true},
		{"another host's", untagged, mac(1), nil, false},
		{"another host's, the first four bytes alike", untagged, MAC{0, 0, 0, 0, 0, 2}, nil, false},
		{"another host's, all but the first byte alike", untagged, MAC{4, 0, 0, 0, 0, 1}, nil, false},
		{"zero", untagged, MAC{}, nil, false},
		{"VRRP's virtual address", withVRRP, vrrp, nil, true},
		{"VRRP's of another group", withVRRP, MAC{0, 0, 0x5e, 0, 1, 52}, nil, false},
		{"last of the maximum number", Destinations{MACs: many}, mac(MaxMACs - 2), nil, true},
		{"none of the maximum number", Destinations{MACs: many}, mac(MaxMACs - 1), nil, false},
		{"not known yet", Destinations{}, mac(1), []uint16{q, 77}, true},
		{"a VLAN that has a device", inVLANs, ownMAC, []uint16{q, 5}, true},
		{"its priority", inVLANs, ownMAC, []uint16{q, 7<<13 | 5}, true},
		{"a VLAN without a device", inVLANs, ownMAC, []uint16{q, 6}, false},
		{"no VLAN has a device", untagged, ownMAC, []uint16{q, 5}, false},
		{"another host's in a VLAN", inVLANs, mac(1), []uint16{q, 5}, false},
		{"only a priority", untagged, ownMAC, []uint16{q, 3 << 13}, true},
		{"802.1ad", inVLANs, ownMAC, []uint16{ad, 6}, true},
		{"802.1ad, the device's is 802.1Q", inVLANs, ownMAC, []uint16{ad, 5}, false},
		{"two tags", inVLANs, ownMAC, []uint16{q, 7, q, 8}, true},
		{"two tags, the outer one 802.1ad", inVLANs, ownMAC, []uint16{ad, 9, q, 10}, true},
		{"two tags, the inner one of another's", inVLANs, ownMAC, []uint16{q, 7, q, 10}, false},
		{"only the outer tag", inVLANs, ownMAC, []uint16{q, 7}, false},
		{"the tag of a VLAN within a priority tag", inVLANs, ownMAC,
			[]uint16{q, 0, q, 5}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newRig(t, Settings{SNATFirst: snatFirst, SNATCount: snatCount}, fixture())
			b.beat(time.Second)
			i, err := b.instance(steerProgSteer)
			must(t, err)
			defer i.Close()
			b.steer = i.Programs[steerProgSteer]
			setDestinations(t, i, c.of)
			for _, p := range []pkt{
				{src: client4, dst: vip4, proto: tcp, dport: 80}, {src: client6, dst: vip6, proto: tcp, dport: 80},
				{src: kept4, dst: client4, proto: tcp, sport: 8080},
			} {
				frame := p.frame()
				copy(frame, c.to[:])
				want := Counters{ForeignPassed: 1}
				if c.want {
					want = Counters{MissedDropped: 1}
				}
				if got := b.fate(t, tagged(frame, c.tags...)); got != want {
					t.Errorf("%s to %s: %+v, want %+v", p.src, p.dst, got, want)
				}
			}
		})
	}
}

// TestDestinationsChange: each call replaces the former destinations, and a call that fails changes
// no address.
func TestDestinationsChange(t *testing.T) {
	b := newRig(t, Settings{}, fixture())
	b.beat(time.Second)
	i, err := b.instance(steerProgSteer)
	must(t, err)
	defer i.Close()
	b.steer = i.Programs[steerProgSteer]
	p := &Port{name: "nic", macs: i.Maps[steerMapMacs], vlans: i.Maps[steerMapVlans]}
	frame := (&pkt{src: client4, dst: vip4, proto: tcp, dport: 80}).frame()
	takes := func(when string, to MAC, tag uint16, want bool) {
		t.Helper()
		f := slices.Clone(frame)
		copy(f, to[:])
		if tag != 0 {
			f = tagged(f, 0x8100, tag)
		}
		if got := b.fate(t, f).ForeignPassed == 0; got != want {
			t.Errorf("%s: a frame for %x, tag %d, is taken: %v", when, to, tag, got)
		}
	}
	other := MAC{2, 0, 0, 0, 0, 9}
	takes("at first", other, 3, true)
	must(t, p.SetDestinations(Destinations{MACs: []MAC{ownMAC}, VLANs: []VLAN{{{ID: 3}}, {{ID: 4}}}}))
	takes("own", other, 0, false)
	takes("own", ownMAC, 3, true)
	must(t, p.SetDestinations(Destinations{MACs: []MAC{other, ownMAC}, VLANs: []VLAN{{{ID: 4}}}}))
	takes("both", other, 0, true)
	takes("both", ownMAC, 4, true)
	takes("both", ownMAC, 3, false)
	if err := p.SetDestinations(Destinations{MACs: make([]MAC, MaxMACs+1)}); !errors.Is(err, ErrManyMACs) {
		t.Error(err)
	}
	takes("too many", other, 0, true)
	must(t, p.SetDestinations(Destinations{MACs: []MAC{other}}))
	takes("the other", ownMAC, 0, false)
	takes("the other", other, 4, false)
	must(t, p.SetDestinations(Destinations{}))
	takes("not known", ownMAC, 4, true)
}
