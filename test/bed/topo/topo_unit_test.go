package topo

import (
	"testing"
)

// A TCP flow whose answers come from another backend is broken, also if the
// connection lives: the oracle of every test of consistency.
func TestFlowReportsAnotherBackend(t *testing.T) {
	f := &Flows{c: newCollector(), flow: make([]FlowState, 1)}
	if first, again := f.answer(0, "a", ""), f.answer(0, "a", ""); !first || !again {
		t.Error("the same backend was taken for another")
	}
	if f.answer(0, "b", "") || f.flow[0].Moves != 1 {
		t.Error("another backend was not noticed")
	}
}

func TestBadConfigs(t *testing.T) {
	for name, c := range map[string]Config{
		"negative clients":   {Clients: -1},
		"too many":           {Backends: maxHosts + 1},
		"queues":             {Queues: maxQueues + 1},
		"mtu":                {MTU: 1000},
		"two mtus, one link": {OneArmed: true, BackendMTU: 1400},
		"tag 0":              {FrontVLANs: []uint16{0}},
		"tag 4095":           {BackVLANs: []uint16{4095}},
		"three tags":         {FrontVLANs: []uint16{1, 2, 3}},
		"one tag, one wire":  {OneArmed: true, FrontVLANs: []uint16{5}, BackVLANs: []uint16{5}},
		"tags without wire":  {Direct: true, FrontVLANs: []uint16{5}},
		"too many gateways":  {Gateways: routerNumber},
		"gateways, one wire": {OneArmed: true, Gateways: 2},
		"router, one wire":   {OneArmed: true, Router: true},
	} {
		t.Run(name, func(t *testing.T) {
			if n, err := New(c); err == nil {
				n.Close()
				t.Error("built")
			}
		})
	}
}
