package status

import (
	"net/netip"
	"time"
)

// SimulateQuery names the files of a simulation.
type SimulateQuery struct {
	Capture   string // file in the form pcap or pcapng; "-": standard input
	Manifests string // directory
	Config    string // file of the configuration; "": the default values
	Node      string // name of the node; "": the configuration's
	// Against is the other side of a comparison: a directory of manifests, or a configuration file;
	// "": none.
	Against string
	MTU     int // of all links, in bytes
}

// DefaultSimulateMTU is the MTU of Ethernet, in bytes.
const DefaultSimulateMTU = 1500

// SimulateView has the verdicts about the packets of a capture.
type SimulateView struct {
	Capture SimulateCapture `json:"capture"`
	// Packets and Flows count what clients sent. A flow is dropped if no packet of it was
	// forwarded. Drops has the packets and flows by reason.
	Packets  SimulateCounts    `json:"packets"`
	Flows    SimulateCounts    `json:"flows"`
	Drops    []SimulateDrop    `json:"drops"`
	Services []SimulateService `json:"services"`
	MTU      SimulateMTU       `json:"mtu"`
	// Against is the comparison; nil without one.
	Against *SimulateComparison `json:"against,omitempty"`
	// Findings are the reasons for an exit code other than 0. Notes are about the simulation.
	Findings []string `json:"findings"`
	Notes    []string `json:"notes"`
	// Problems are refused objects of the manifests.
	Problems []ProblemView `json:"problems,omitempty"`
}

// SimulateCapture counts the packets of the file.
type SimulateCapture struct {
	File  string    `json:"file"`
	First time.Time `json:"first"` // time of the first packet
	Last  time.Time `json:"last"`
	// Packets = Clients + Replies + Earlier + Unusable + Others. Clients and Replies are simulated.
	Packets uint64 `json:"packets"`
	Clients uint64 `json:"clients"`
	Replies uint64 `json:"replies"` // of backends, to flows of the simulation
	// Earlier are packets of connections that were open when the capture began.
	Earlier uint64 `json:"earlier"`
	// Unusable packets are not Ethernet, or the capture truncated their headers.
	Unusable uint64 `json:"unusable"`
	Others   uint64 `json:"others"`
}

// SimulateCounts counts packets or flows by verdict.
type SimulateCounts struct {
	Forwarded uint64 `json:"forwarded"`
	ToKernel  uint64 `json:"toKernel"`
	Dropped   uint64 `json:"dropped"`
	// Earlier are flows that were open when the capture began; they are not in the sums above.
	// Uncounted are packets of flows for which the simulation had no room; such flows are not
	// counted.
	Earlier   uint64 `json:"earlier,omitempty"`
	Uncounted uint64 `json:"uncounted,omitempty"`
}

// SimulateDrop has the drops for one reason.
type SimulateDrop struct {
	Reason  string        `json:"reason"`
	Packets uint64        `json:"packets"`
	Flows   uint64        `json:"flows"`
	Example *SimulateFlow `json:"example,omitempty"` // the first flow
}

// SimulateService has the flows of one service port.
type SimulateService struct {
	Service   string            `json:"service"` // namespace/name, with :port-name if it has one
	Protocol  string            `json:"protocol"`
	Scheduler string            `json:"scheduler"`
	Flows     uint64            `json:"flows"` // forwarded
	Backends  []SimulateBackend `json:"backends"`
}

// SimulateBackend has the flows of one backend. Share is its part of the Service's flows, Expected
// the part that it would have by its weight; both from 0 to 1.
type SimulateBackend struct {
	Address  netip.AddrPort `json:"address"`
	Flows    uint64         `json:"flows"`
	Share    float64        `json:"share"`
	Expected float64        `json:"expected"`
	// PortsPeak is the number of source ports that flows to it had at once, of PortsLimit. Flows
	// that keep the client's address need none.
	PortsPeak  uint64 `json:"portsPeak"`
	PortsLimit uint64 `json:"portsLimit"`
}

// SimulateMTU has the packets that exceed the MTU.
type SimulateMTU struct {
	Bytes      int    `json:"bytes"`      // the MTU
	TooBig     uint64 `json:"tooBig"`     // packets that were dropped
	Fragmented uint64 `json:"fragmented"` // IPv4 packets without DF
	Largest    uint64 `json:"largest"`    // bytes of the largest packet
}

// SimulateComparison has the differences between the simulated gateway and the one of Path.
type SimulateComparison struct {
	Path string `json:"path"`
	// Moved: flows that go to another backend. Lost: flows that only the other one forwards.
	// Gained: flows that the other one does not forward. Same: all other flows.
	Moved  SimulateChange `json:"moved"`
	Lost   SimulateChange `json:"lost"`
	Gained SimulateChange `json:"gained"`
	Same   uint64         `json:"same"`
	// Chance: flows that go to another backend, but whose Service's scheduler does not choose by
	// hash, so that they may do so in the next run as well.
	Chance uint64 `json:"chance"`
}

// SimulateChange has the flows with one difference.
type SimulateChange struct {
	Flows   uint64        `json:"flows"`
	Example *SimulateFlow `json:"example,omitempty"` // the first flow
}

// SimulateFlow is one flow, its result, and its result for the gateway that it is compared with.
type SimulateFlow struct {
	Client   netip.AddrPort  `json:"client"`
	VIP      netip.AddrPort  `json:"vip"`
	Protocol string          `json:"protocol"`
	Result   SimulateResult  `json:"result"`
	Against  *SimulateResult `json:"against,omitempty"`
}

// SimulateResult is the verdict about a flow.
type SimulateResult struct {
	Verdict string         `json:"verdict"` // forward, drop, pass
	Reason  string         `json:"reason,omitempty"`
	Service string         `json:"service,omitempty"`
	Backend netip.AddrPort `json:"backend,omitzero"`
}
